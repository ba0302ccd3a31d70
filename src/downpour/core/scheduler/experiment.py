"""One experiment as the scheduler sees it: its rounds, its model versions, its open requests.

It knows the files that it needs, and the files to remove. It opens no file, and holds no tensors.
"""

from collections.abc import Iterator, Sequence
from itertools import chain, islice

from downpour.base.states import (
    EXPERIMENT,
    Evaluation,
    ExperimentState,
    Lifecycle,
    progress_timeout,
)
from downpour.base.values import AttemptId, Part, PublishedFile, TrialSums
from downpour.core.modes import mode_of
from downpour.core.round_times import RoundTimes
from downpour.core.scheduler.events import Best, HandedOn, better
from downpour.core.scheduler.outputs import Accepted, Push, Quarantined
from downpour.core.scheduler.round import Round, ShardTask, TaskKey, Unaudited
from downpour.core.spec import ResolvedSpec

# Importing torch and making a network took 7 to 10 s when three workers shared two busy cores.
_STARTUP_SECONDS = 10.0
_KEPT_IN_TRAINING = 3
EVALUATIONS_AHEAD = 1
"""How many rounds may train while an earlier one is being evaluated. Without a limit, model
versions would pile up if an evaluation takes longer than a round."""


class Experiment:
    """A submitted spec and how far it has come.

    `rounds` are the open rounds, oldest first: in step at most one, or two that overlap.
    `rounds_begun` counts these and all earlier ones. Tasks in `arrived` have an update that is part
    of no model version yet. The keys are in the order of arrival, and the values are its times. The
    manager makes the updates of `applying` into the version after `version`, which it made at
    `version_at_seconds`. `dataset` names the prepared data, and `frozen` the file of the parameters
    that no task trains. `trial` has the checksums of the steps that each process repeats. `models`
    are the versions not yet discarded, oldest first. `outer` is the last published state of the
    outer optimizer, if there is one. We keep the updates of each version made after it
    (`since_outer`), from which another manager computes the newest state. `means` are those of
    rounds that we measure or publish, by the name of the version ahead. `evaluating` are the
    versions being evaluated, by round; `evaluated_versions` are the numbers of all versions that we
    ever evaluated. `best` is the best version evaluated so far, if the spec compares versions. If
    the spec holds out training examples for validation, the manager tests the model once, at the
    end (`tested`). While the experiment is `publishing`, only the result is outstanding. It is not
    `ready` while a restarted manager prepares to continue it. `progress_timeout` says how long an
    attempt may make no step. `overhead_seconds` is the time besides training that an attempt of the
    last round took. A worker that takes no longer than `startup_limit_seconds` to start counts as
    starting, and not as stalled. `told_waits` says what its shards wait for, if that may never
    come. Of the waiting experiments, the one with the highest `priority` is next, unless a user has
    `paused` it. It fails after a `policy_error`. A policy that watches looks again at a heartbeat
    from `look_again_at_seconds` on, and before `crowded_until_seconds` only if a shard and a worker
    wait. `preparing` counts the requested preparations without an answer. All workers tried it and
    turned out unfit at `unfit_since_seconds`.

    Shards continue with their `optimizer_states`, by shard. If rounds overlap, they start with
    `steps`, their last applied updates. If they keep their own parameters, they start with `own`.
    `homes` names the worker whose update of a shard counted last. The last update of all had
    `update_bytes`. `unaudited` has each worker's tasks since its last good audit. Its audits have
    `quarantined` workers. It `audits` no more tasks once we know that their bytes do not repeat.
    """

    def __init__(self, name: str, spec: ResolvedSpec, at_seconds: float = 0.0) -> None:
        self.name = name
        self.spec = spec
        self.owner, self.priority, self.paused = "", 0, False
        self.preparing = 0
        self.submitted_at_seconds = at_seconds
        self.life = Lifecycle(f"experiment {name}", EXPERIMENT, ExperimentState.WAITING)
        self.dataset: str | None = None
        self.frozen: PublishedFile | None = None
        self.trial: TrialSums | None = None
        self.shard_samples: tuple[int, ...] = ()
        self.mode = mode_of(spec)
        self.rounds: list[Round] = []
        self.rounds_begun = self.rounds_done = 0
        self.times = RoundTimes()
        self.version = 0
        self.version_at_seconds: float | None = None
        self.arrived: dict[TaskKey, float] = {}
        self.applying: tuple[TaskKey, ...] = ()
        self.models: list[PublishedFile] = []
        self.outer: PublishedFile | None = None
        self.since_outer: list[tuple[Push, ...]] = []
        self.means: dict[str, PublishedFile] = {}
        self.optimizer_states: dict[int, PublishedFile] = {}
        self.steps: dict[int, PublishedFile] = {}
        self.own: dict[int, PublishedFile] = {}
        self.homes: dict[int, str] = {}
        self.update_bytes = 0
        self.evaluating: dict[int, PublishedFile] = {}
        self.evaluated_versions: set[int] = set()
        self.publishing = self.testing = False
        self.ready = True
        self.evaluated_round = spec.evaluated_before
        self.last_evaluation: Evaluation | None = None
        self.best: Best | None = None
        self.tested: Evaluation | None = None
        self.result: PublishedFile | None = None
        self.reason = ""
        self.asked_wrongly = False
        self.told_waits = self.policy_error = ""
        self.look_again_at_seconds = self.crowded_until_seconds = 0.0
        self.unfit_since_seconds: float | None = None
        self.told_standing_by: frozenset[str] = frozenset()
        self.unaudited: dict[str, Unaudited] = {}
        self.quarantined: dict[str, Quarantined] = {}
        self.audits = spec.audit > 0
        self.progress_timeout = progress_timeout()
        self.overhead_seconds = 0.0
        self.startup_limit_seconds = _STARTUP_SECONDS

    @property
    def round(self) -> Round | None:
        """The oldest round that is not over; the only open one if shards are in step."""
        return self.rounds[0] if self.rounds else None

    def round_of(self, number: int) -> Round | None:
        """Return the round of this number if it has begun and is not over."""
        place = number - self.rounds_done
        return self.rounds[place] if 0 <= place < len(self.rounds) else None

    @property
    def model(self) -> PublishedFile:
        """The newest model version."""
        return self.models[-1]

    def shown(self, version: PublishedFile) -> PublishedFile:
        """Return the file that we measure and publish for a version: the mean, or itself."""
        return self.means.get(version.name, version)

    @property
    def training_is_done(self) -> bool:
        """Whether the last round has been aggregated."""
        return self.all_rounds_done or self.has_stopped_early

    @property
    def all_rounds_done(self) -> bool:
        """Whether every round that the spec asks for has been aggregated."""
        return self.rounds_done >= self.spec.rounds

    @property
    def has_stopped_early(self) -> bool:
        """Whether no model was better than the best for as many epochs as the spec allows."""
        return not self.evaluating and self._ends_unless_better(self.evaluated_round)

    @property
    def has_progress(self) -> bool:
        """Whether a worker has trained any of it, so that at least one could."""
        return bool(self.version or self.arrived) or any(
            task.snapshot is not None for task in self.open_tasks()
        )

    @property
    def may_start_round(self) -> bool:
        """Whether the next round may begin without running too far ahead of the evaluations."""
        # We also don't begin a round while an outstanding evaluation may end the training before
        # it. So the last round, and with it the result, does not depend on how long evaluations
        # take.
        newest = max(self.evaluating, default=self.evaluated_round)
        is_near = len(self.evaluating) <= EVALUATIONS_AHEAD and not self._ends_unless_better(newest)
        return is_near and not self.training_is_done

    @property
    def has_room(self) -> bool:
        """Whether a shard has finished its task of the newest round, and may begin the next one."""
        if not self.rounds:
            return True
        ahead = self.mode.ahead
        near = ahead is None or len(self.rounds) <= ahead
        left = self.rounds_done + len(self.rounds) < self.spec.rounds
        newest = self.rounds[-1]
        return near and left and (newest.published if self.mode.overlaps else newest.applied) > 0

    @property
    def may_publish(self) -> bool:
        """Whether we may publish the result, because all rounds are trained and evaluated."""
        return self._is_measured and not self.needs_test

    @property
    def needs_test(self) -> bool:
        """Whether only the evaluation on the test examples is missing."""
        return self._is_measured and self.part == "validation" and self.tested is None

    @property
    def _is_measured(self) -> bool:
        return self.training_is_done and not self.evaluating

    @property
    def part(self) -> Part:
        """The examples on which the manager evaluates models after rounds."""
        return "validation" if self.spec.validation else "test"

    @property
    def kept_best(self) -> PublishedFile | None:
        """The best model version, if the spec keeps it."""
        return self.best.model if self.best is not None and self.spec.keep_best else None

    @property
    def why_it_ends(self) -> str:
        """Why there are no more rounds."""
        if self.all_rounds_done or self.spec.goal is None:
            return "every round is done"
        since = f"since epoch {self.epoch_of(self.best.round)}" if self.best else "at all"
        return f"no better {self.spec.goal.metric} {since}"

    def epoch_of(self, round_number: int) -> int:
        """Return the epoch of a round in the whole training, counted from 1, as people do."""
        return self.spec.meetings.epoch_of(round_number) + 1

    def start_rounds(self) -> None:
        """Begin every round that may begin."""
        while self.may_start_round and self.has_room:
            self.start_round()

    def start_round(self) -> None:
        """Begin the next round; hold back shards whose task of the round before isn't done."""
        former = self.rounds[-1].tasks if self.rounds else []
        overlaps = self.mode.overlaps
        held_back = [t.shard for t in former if not (t.is_over or (overlaps and t.update))]
        number = self.rounds_done + len(self.rounds)
        self.rounds.append(Round(self.name, number, self.shard_samples, held_back, self.homes))
        self.rounds_begun = number + 1

    def start_from(self, model: PublishedFile, handed_on: HandedOn) -> None:
        """Begin to train from a model, with the state that an earlier experiment handed on."""
        self.evaluating = dict(handed_on.unevaluated)
        best = handed_on.best.model if handed_on.best is not None else None
        self.models += filter(None, (*self.evaluating.values(), best, handed_on.former, model))
        self.optimizer_states = dict(handed_on.states)
        self.steps = dict(handed_on.steps)
        self.best = handed_on.best
        # If that evaluation ends the training, this model is the last one, too.
        self.means = {model.name: self.evaluating[-1]} if -1 in self.evaluating else {}
        # Each of these evaluations counts as a later one.
        self.evaluated_round = min([self.evaluated_round, *(n - 1 for n in self.evaluating)])
        self.start_rounds()

    def assign(
        self, current: Round, shard: int, worker: str, at_seconds: float, share: float = 1.0
    ) -> AttemptId:
        """Assign a task to a worker; its first attempt fixes the base and the share for all.

        The base is the newest version, or the shard's own parameters.
        """
        task = current.tasks[shard]
        if task.base is None:
            if share < 1:
                task.shorten(share)
            version = self._begins_from(current)
            model = self.models[version - self.version - 1]
            task.base, task.base_version = self.own.get(shard, model), version
        return current.assign(shard, worker, at_seconds)

    def _begins_from(self, current: Round) -> int:
        """Return the version from which a round's tasks begin if we assign them now."""
        # We go by the version's number and not by the existing files, because the bytes must not
        # depend on the time of assignment.
        if not self.mode.overlaps:
            return self.version
        # The first round follows another round only if the experiment continues an earlier one.
        return current.number - 1 if current.number or self.steps else 0

    def handed_on(self, current: Round, shard: int) -> tuple[PublishedFile | None, ...]:
        """Return the states that a shard's task starts with: its optimizer state and last update.

        The update is None unless the mode overlaps.
        """
        former = self.round_of(current.number - 1) if self.mode.overlaps else None
        update = former.tasks[shard].update if former is not None else None
        if update is not None:
            return update.optimizer_state, update.file
        return self.optimizer_states.get(shard), self.steps.get(shard)

    def arrive(self, accepted: Accepted, at_seconds: float) -> None:
        """Note that an update counts, and waits to become part of a model version."""
        key = TaskKey(accepted.attempt.round, accepted.attempt.shard)
        self.arrived[key] = at_seconds
        if accepted.confirmed_by:
            for name in (accepted.worker, *accepted.confirmed_by):
                self.unaudited.pop(name, None)
        elif self.spec.audit:
            first = Unaudited(key, 0, self.model, self.version)
            self.unaudited[accepted.worker] = self.unaudited.get(accepted.worker, first).extended()
        if not self.mode.overlaps:
            return
        following = self.round_of(key.round + 1)
        if following is not None and key.shard in following.held_back:
            following.release(key.shard)
        self.start_rounds()

    def leave(self, key: TaskKey) -> None:
        """Note that an update no longer waits, because it is unusable."""
        del self.arrived[key]
        following = self.round_of(key.round + 1) if self.mode.overlaps else None
        if following is not None:
            following.hold_back(key.shard)

    def of_oldest_round(self) -> tuple[TaskKey, ...]:
        """Return the tasks of the oldest round whose updates have arrived, in order."""
        return tuple(sorted(key for key in self.arrived if key.round == self.rounds_done))

    def due(self, now_seconds: float) -> tuple[TaskKey, ...]:
        """Return the tasks whose updates should become the next version now, in order."""
        if self.mode.overlaps:
            is_complete = self.round is not None and self.round.complete
            return self.of_oldest_round() if is_complete else ()
        if any(current.outstanding for current in self.rounds) and not self._suffices(now_seconds):
            return ()
        together = self.mode.together if self.mode.grace_seconds is None else None
        return tuple(sorted(islice(self.arrived, together)))

    def _suffices(self, now_seconds: float) -> bool:
        """Whether to make a version from the updates so far, although more may arrive."""
        together, grace = self.mode.together, self.mode.grace_seconds or 0.0
        if together is None or len(self.arrived) < together:
            return False
        return now_seconds >= next(islice(self.arrived.values(), together - 1, None)) + grace

    def has_enough(self, current: Round) -> bool:
        """Whether a round ends with the updates that it has, although others are outstanding."""
        return self.mode.enough is not None and current.published >= self.mode.enough

    def staleness(self, task: ShardTask) -> int:
        """Return how many versions we made since a task's base."""
        return self.version - task.base_version

    def take_version(
        self,
        model: PublishedFile,
        outer: PublishedFile | None = None,
        own: Sequence[PublishedFile] = (),
        pushes: tuple[Push, ...] = (),
        mean: PublishedFile | None = None,
    ) -> tuple[list[Round], tuple[PublishedFile, ...]]:
        """Note the version that the driver made from the updates of `applying`, the `pushes`.

        Returns:
            The rounds that end with this version, and the files other than models that the driver
            may remove now.
        """
        spent, replaced = zip(*map(self._apply, self.applying), strict=True)
        # Each of these was the base of the task that has just ended, and of no other task.
        left = [self.own.pop(key.shard, None) for key in self.applying]
        if own:
            self.own |= zip((key.shard for key in self.applying), own, strict=True)
        applied = set(self.applying)
        self.arrived = {key: at for key, at in self.arrived.items() if key not in applied}
        self.applying = ()
        self.version += 1
        self.models.append(model)
        self.means |= {model.name: mean} if mean is not None else {}
        over = []
        while self.rounds and self.rounds[0].is_over:
            over.append(self._close_round(model))
        snapshots = (t.snapshot.file for each in over for t in each.tasks if t.snapshot is not None)
        former = [*spent, *replaced, *left]
        if outer is not None:
            former += [self.outer, *self._files_since_outer()]
            self.outer, self.since_outer = outer, []
        elif self.outer is not None:
            self.since_outer.append(pushes)
        held = {None, *self._files_since_outer()}
        return over, (*(file for file in dict.fromkeys(former) if file not in held), *snapshots)

    def _files_since_outer(self) -> tuple[PublishedFile, ...]:
        files = (push.update.file for each in self.since_outer for push in each)
        return tuple(file for file in files if file not in self.steps.values())

    def _apply(self, key: TaskKey) -> tuple[PublishedFile | None, PublishedFile | None]:
        """Make an update part of the version, and offer its shard again.

        Returns:
            Two files that we no longer need: the update, or the shard's previous update if rounds
            overlap; and the optimizer state that the update replaces.
        """
        current, following = self.round_of(key.round), self.round_of(key.round + 1)
        update = current.apply(key.shard) if current is not None else None
        if update is None:
            raise RuntimeError(f"{key} of {self.name} has no update")
        # A dropped shard continues with its old state.
        replaced = self.optimizer_states.pop(key.shard, None)
        if update.optimizer_state is not None:
            self.optimizer_states[key.shard] = update.optimizer_state
        if self.mode.overlaps:
            former = self.steps.get(key.shard)
            self.steps[key.shard] = update.file
            return former, replaced
        if following is not None:
            following.release(key.shard)
        return update.file, replaced

    def _close_round(self, model: PublishedFile) -> Round:
        """End the oldest round; `model` is the version after it."""
        current = self.rounds.pop(0)
        # If we know no overhead of this round, the last known one stays.
        self.overhead_seconds = current.overhead_seconds or self.overhead_seconds
        self.rounds_done += 1
        if self.wants_evaluation(current.number):
            self.evaluating[current.number] = model
            self.evaluated_versions.add(self.version)
        return current

    def take_evaluation(self, number: int, evaluation: Evaluation) -> None:
        """Note how good a round's model is."""
        model = self.evaluating.pop(number)
        if self.spec.goal is not None:
            self.best = better(self.spec.goal, self.best, number, evaluation, model)
        # Evaluations may overtake each other, so the last one is that of the latest round.
        if number > self.evaluated_round:
            self.evaluated_round = number
            self.last_evaluation = evaluation

    def close(self) -> tuple[PublishedFile, ...]:
        """End the open rounds and the evaluations; return the files that only they needed.

        The shards' states stay, for an experiment that continues this one.
        """
        files = self._files_in_flight()
        self.rounds, self.arrived, self.applying = [], {}, ()
        self.testing = False
        self.own, self.evaluating = {}, {}
        return files

    def files(self) -> tuple[PublishedFile, ...]:
        """Return every file that the experiment needs to continue."""
        needed = (*self._files_in_flight(), *self.files_of_shards(), *self.files_of_versions())
        return (*needed, *self._files_since_outer())

    def files_of_versions(self) -> tuple[PublishedFile, ...]:
        """Return the kept means and versions, and the outer optimizer's state at the last one."""
        return (*self.means.values(), *self.models, *filter(None, (self.outer,)))

    def files_of_shards(self) -> tuple[PublishedFile, ...]:
        """Return the files with which the shards continue; they stay when the experiment ends."""
        return (*self.optimizer_states.values(), *self.steps.values())

    def _files_in_flight(self) -> tuple[PublishedFile, ...]:
        files = (file for task in self.open_tasks() for file in task.files())
        return (*files, *self.own.values())

    def tasks_at_hand(self) -> list[ShardTask]:
        """Return each shard's newest task, in shard order; in step, the round's tasks."""
        newest = {t.shard: t for c in self.rounds for t in c.tasks if t.shard not in c.held_back}
        return [newest[shard] for shard in sorted(newest)]

    def open_tasks(self) -> Iterator[ShardTask]:
        """Return the tasks of all rounds that have begun and are not over."""
        return chain.from_iterable(current.tasks for current in self.rounds)

    def knows(self, attempt: AttemptId) -> bool:
        """Whether we made this attempt; for earlier rounds, we can check only round and shard."""
        # We may remove only files of attempts that we made. Otherwise, a member of the cluster
        # could make us remove any file by reporting it as late.
        current = self.round_of(attempt.round)
        if current is not None:
            return current.find(attempt) is not None
        # Attempts that the end of an experiment cut off belong to these earlier rounds.
        in_time = 0 <= attempt.round < max(self.rounds_begun, self.rounds_done + 1)
        return in_time and 0 <= attempt.shard < len(self.shard_samples) and attempt.attempt >= 0

    def needs(self, shard: int, file: PublishedFile) -> bool:
        """Whether we still need a shard's file: its optimizer state, or an update."""
        state = self.optimizer_states.get(shard)
        tasks = (current.tasks[shard] for current in self.rounds)
        held = (state, self.steps.get(shard), *self._files_since_outer())
        needed = (*held, *chain.from_iterable(task.files() for task in tasks))
        return any(each is not None and each.name == file.name for each in needed)

    def wants_evaluation(self, round_number: int) -> bool:
        """Whether to evaluate this round's model; always the last round's, if we evaluate any."""
        every = self.spec.evaluate_every
        last = round_number == self.spec.rounds - 1
        due = every > 0 and self.epoch_of(round_number) % every == 0
        return every > 0 and (last or (due and self.spec.meetings.ends_epoch(round_number)))

    def _ends_unless_better(self, number: int) -> bool:
        """Whether training ends with this round unless a round up to it improves on the best."""
        if self.spec.stop_after is None:
            return False
        # We count from the beginning of the training, unless no earlier model can be compared.
        resumed = self.spec.best_checksum is not None
        first = self.spec.meetings.last_of(0) if resumed else self.spec.evaluated_before
        best = self.best.round if self.best is not None else first
        return self.epoch_of(number) - self.epoch_of(best) >= self.spec.stop_after

    def bases(self) -> Iterator[PublishedFile]:
        """Return the bases of the tasks whose updates are part of no version yet."""
        return (t.base for t in self.open_tasks() if t.base is not None and not t.is_over)

    @property
    def kept_newest(self) -> int:
        """How many of the newest versions are kept, at least 1."""
        # If rounds overlap, the next ones begin from the version before the newest, and so does an
        # experiment that continues this one.
        others = _KEPT_IN_TRAINING if self.result is None else 1  # for readers of a growing model
        return max(self.spec.keep_models or others, 1 + self.mode.overlaps)
