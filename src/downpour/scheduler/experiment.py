"""One experiment as the scheduler sees it: its rounds, its model versions, what is outstanding.

It knows which files are needed and which may be removed. It opens none, and holds no tensors.
"""

from __future__ import annotations

from downpour.scheduler.best import Best, better
from downpour.scheduler.lifecycle import EXPERIMENT, Lifecycle
from downpour.scheduler.round import Round, files_of
from downpour.scheduler.timeouts import progress_timeout
from downpour.spec import ResolvedSpec
from downpour.values import AttemptId, Evaluation, ExperimentState, Part, PublishedFile

EVALUATIONS_AHEAD = 1
"""Rounds that may be trained while an earlier one is being evaluated. Were there no limit, model
versions would pile up wherever an evaluation takes longer than a round."""


class Experiment:
    """A submitted spec and how far it has come.

    `dataset` names what was prepared, `frozen` the parameters that are never trained. `models` are
    the versions not yet discarded, oldest first; `outer` is the state of the outer optimizer that
    belongs to the newest, if there is one. `optimizer_states` are the states with which
    shards continue, by shard; `evaluating` are the versions being evaluated, by round. `best` is
    the best version evaluated so far, if the spec compares them. Where training examples are set
    apart for validation, the model is `tested` once, at the end. While it is `publishing`, only the
    result is outstanding. It is not `ready` while a restarted manager prepares what it needs to go
    on. `progress_timeout` says how long an attempt may make no step. `overhead_seconds` is what an
    attempt took beside training in the last round.
    """

    def __init__(self, name: str, spec: ResolvedSpec, at_seconds: float = 0.0) -> None:
        self.name = name
        self.spec = spec
        self.submitted_at_seconds = at_seconds
        self.life = Lifecycle(f"experiment {name}", EXPERIMENT, ExperimentState.WAITING)
        self.dataset: str | None = None
        self.frozen: PublishedFile | None = None
        self.shard_samples: tuple[int, ...] = ()
        self.round: Round | None = None
        self.rounds_done = 0
        self.models: list[PublishedFile] = []
        self.outer: PublishedFile | None = None
        self.optimizer_states: dict[int, PublishedFile] = {}
        self.evaluating: dict[int, PublishedFile] = {}
        self.publishing = False
        self.ready = True
        self.evaluated_round = -1
        self.last_evaluation: Evaluation | None = None
        self.best: Best | None = None
        self.testing = False
        self.tested: Evaluation | None = None
        self.result: PublishedFile | None = None
        self.reason = ""
        self.asked_wrongly = False
        self.progress_timeout = progress_timeout()
        self.overhead_seconds = 0.0

    @property
    def model(self) -> PublishedFile:
        """The newest model version."""
        return self.models[-1]

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
    def may_start_round(self) -> bool:
        """Whether the next round may begin without running too far ahead of the evaluations."""
        # A round is not begun either while an evaluation may end the training before it. So the
        # last round, and with it the result, does not depend on how long evaluations take.
        newest = max(self.evaluating, default=self.evaluated_round)
        is_near = len(self.evaluating) <= EVALUATIONS_AHEAD and not self._ends_unless_better(newest)
        return is_near and not self.training_is_done

    @property
    def may_publish(self) -> bool:
        """Whether the result may be published: all rounds are trained and evaluated."""
        return self._is_measured and not self.needs_test

    @property
    def needs_test(self) -> bool:
        """Whether all is done but the evaluation on the test examples."""
        return self._is_measured and self.part == "validation" and self.tested is None

    @property
    def _is_measured(self) -> bool:
        return self.training_is_done and not self.evaluating

    @property
    def part(self) -> Part:
        """The examples on which models are evaluated after rounds."""
        return "validation" if self.spec.validation else "test"

    @property
    def _best_round(self) -> int:
        return self.best.round if self.best is not None else -1

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
        """Return the epoch of a round as people count: from 1."""
        return self.spec.meetings.epoch_of(round_number) + 1

    def start_round(self) -> None:
        """Begin the next round."""
        self.round = Round(self.name, self.rounds_done, self.shard_samples)

    def aggregating(self, number: int) -> Round | None:
        """Return the current round if it has this number and is being aggregated, else None."""
        current = self.round
        if current is None or current.number != number or not current.aggregating:
            return None
        return current

    def close_round(
        self, current: Round, model: PublishedFile, outer: PublishedFile | None = None
    ) -> tuple[PublishedFile, ...]:
        """End the round with its model version; returns the files that may be removed now."""
        shards, updates = current.shards(), current.apply()
        snapshots = (t.snapshot.file for t in current.tasks if t.snapshot is not None)
        states = {s: u.optimizer_state for s, u in zip(shards, updates, strict=True)}
        # Only the states of shards that counted: a shard that was dropped goes on with its old one.
        replaced = (self.optimizer_states[s] for s in states if s in self.optimizer_states)
        former = (self.outer,) if self.outer is not None else ()
        spent = (*(update.file for update in updates), *snapshots, *replaced, *former)
        kept = {s: f for s, f in self.optimizer_states.items() if s not in states}
        self.optimizer_states = kept | {s: f for s, f in states.items() if f is not None}
        # A round of which no overhead is known leaves the last one that is.
        self.overhead_seconds = current.overhead_seconds or self.overhead_seconds
        self.round = None
        self.rounds_done += 1
        self.models.append(model)
        self.outer = outer
        if self._wants_evaluation(current.number):
            self.evaluating[current.number] = model
        return (*spent, *self._spent_models())

    def take_test(self, evaluation: Evaluation) -> None:
        """Note how good the model is on the test examples, once training is done."""
        self.testing = False
        self.tested = self.last_evaluation = evaluation

    def take_evaluation(self, number: int, evaluation: Evaluation) -> tuple[PublishedFile, ...]:
        """Note how good a round's model is; returns the model versions that may be removed now."""
        model = self.evaluating.pop(number)
        if self.spec.goal is not None:
            self.best = better(self.spec.goal, self.best, number, evaluation, model)
        # Evaluations may overtake each other: the last one is that of the latest round.
        if number > self.evaluated_round:
            self.evaluated_round = number
            self.last_evaluation = evaluation
        return self._spent_models()

    def close(self) -> tuple[PublishedFile, ...]:
        """End the current round and the evaluations; returns the files that only they needed."""
        files = self._files_in_flight()
        self.round = None
        self.testing = False
        self.optimizer_states = {}
        self.evaluating = {}
        return (*files, *self._spent_models())

    def files(self) -> tuple[PublishedFile, ...]:
        """Return every file that the experiment needs to go on."""
        outer = (self.outer,) if self.outer is not None else ()
        return (*self._files_in_flight(), *self.models, *outer)

    def _files_in_flight(self) -> tuple[PublishedFile, ...]:
        tasks = self.round.tasks if self.round else ()
        files = (file for task in tasks for file in task.files())
        return (*files, *self.optimizer_states.values())

    def knows(self, attempt: AttemptId) -> bool:
        """Whether the attempt was made; of earlier rounds, only round and shard can be checked."""
        # Only files of attempts that were made may be removed: a member of the cluster could
        # otherwise have any file removed by reporting it as late.
        if self.round is not None and attempt.round == self.round.number:
            return self.round.find(attempt) is not None
        in_time = 0 <= attempt.round <= self.rounds_done
        return in_time and 0 <= attempt.shard < len(self.shard_samples) and attempt.attempt >= 0

    def needs(self, shard: int, file: PublishedFile) -> bool:
        """Whether a shard still needs a file: its optimizer's state, or its unapplied update."""
        state = self.optimizer_states.get(shard)
        update = self.round.tasks[shard].update if self.round else None
        needed = (state, *(files_of(update) if update else ()))
        return any(each is not None and each.name == file.name for each in needed)

    def _wants_evaluation(self, round_number: int) -> bool:
        """Whether to evaluate this round's model; that of the last round always, if any is."""
        every = self.spec.evaluate_every
        last = round_number == self.spec.rounds - 1
        due = every > 0 and self.epoch_of(round_number) % every == 0
        return every > 0 and (last or (due and self.spec.meetings.ends_epoch(round_number)))

    def _ends_unless_better(self, number: int) -> bool:
        """Whether training ends with this round if no round up to it is better than the best."""
        # Rounds that are evaluated end an epoch; before the first of them, no epoch has ended.
        epochs = [self.epoch_of(one) if one >= 0 else 0 for one in (number, self._best_round)]
        since = epochs[0] - epochs[1]
        return self.spec.stop_after is not None and since >= self.spec.stop_after

    def _spent_models(self) -> tuple[PublishedFile, ...]:
        """Remove and return the model versions that are neither kept nor being evaluated."""
        needed = {file.name for file in self.evaluating.values()}
        # Once there is a result, the best version is published beside it under its own name.
        if self.kept_best is not None and self.result is None:
            needed.add(self.kept_best.name)
        kept = self.spec.keep_models
        # `keep_models` is at least 1, so this is never the whole list.
        older, newest = self.models[:-kept], self.models[-kept:]
        self.models = [file for file in older if file.name in needed] + newest
        return tuple(file for file in older if file.name not in needed)
