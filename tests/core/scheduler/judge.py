"""A judge of the scheduler, who knows events, facts and commands and not the core's state."""

from collections import Counter

from downpour.base.states import ExperimentState, FailureKind
from downpour.base.values import AttemptId, PublishedFile, Snapshot, Update
from downpour.core.scheduler import Output, Scheduler
from downpour.core.scheduler import events as on
from downpour.core.scheduler import outputs as out
from downpour.core.scheduler.queue import WHOLE_EVERY


class Judge:
    """Follows what the scheduler says and asks, and remembers what was promised."""

    def __init__(self) -> None:
        self.specs: dict[str, on.ExperimentSubmitted] = {}
        self.assigned: dict[AttemptId, out.Assigned] = {}
        self.contributions: dict[tuple[str, int, int], Update] = {}
        self.dropped: set[tuple[str, int, int]] = set()
        self.saved: dict[tuple[str, int, int], Snapshot] = {}
        self.aggregated: Counter[tuple[str, int]] = Counter()
        self.applied: Counter[tuple[str, int, int]] = Counter()
        self.newest: dict[str, PublishedFile] = {}
        self.versions: dict[tuple[str, int], PublishedFile] = {}
        self.values: dict[str, dict[int, float]] = {}
        self.best: dict[str, out.Improved] = {}
        self.evaluated: Counter[tuple[str, int]] = Counter()
        self.measuring: set[tuple[str, int, str]] = set()
        self.tested: dict[str, on.Evaluated] = {}
        self.asked_for: dict[str, PublishedFile] = {}
        self.results: dict[str, PublishedFile] = {}
        self.concluded: dict[str, out.Concluded] = {}
        self.here: set[str] = set()
        self.awaited: set[str] = set()
        self.reported: set[tuple[str, str]] = set()
        self.discarded: set[tuple[str, str]] = set()
        self.kept: set[tuple[str, str]] = set()
        self.whole: set[tuple[str, int]] = set()
        self.paused: set[str] = set()

    def see(self, scheduler: Scheduler, event: on.Event, output: Output) -> None:
        """Take in what came out of an event; raises AssertionError where that was wrong."""
        self._see_event(event)
        ended = set(self.concluded)
        for fact in output.facts:
            assert fact.cause == scheduler.state.cause
            assert _experiment(fact) not in ended, f"{fact} comes after the end"
            self._see_fact(event, fact)
        for command in output.commands:
            late = _experiment(command) in ended
            assert not late or isinstance(command, out.Discard), f"{command} comes after the end"
            self._see_command(scheduler, command)
        self._belong_together(output)
        registered = {worker.name for worker in scheduler.state.workers if not worker.is_awaited}
        assert self.here == registered, "who is gone is dismissed, once"
        assert set(scheduler.state.workers.names) - registered <= self.awaited
        if isinstance(event, on.WorkerLeft | on.WorkerLost):
            assert event.worker not in self.here, "who says goodbye is gone"

    def _see_fact(self, event: on.Event, fact: out.Fact) -> None:  # noqa: C901 - arms
        match fact:
            case out.Assigned():
                self._assign(fact)
            case out.Accepted():
                self._accept(event, fact)
            case out.Saved():
                self._save(event, fact)
            case out.Contradicted():
                assert fact.update.file.checksum != fact.accepted.file.checksum
            case out.GivenUp():
                self._give_up(event, fact)
            case out.Concluded():
                self._conclude(fact)
            case out.Dismissed():
                (self.here if fact.worker in self.here else self.awaited).remove(fact.worker)
            case out.Dropped():
                assert any(
                    (fact.experiment, fact.round, shard) in self.contributions
                    for shard in range(self.specs[fact.experiment].spec.shards)
                ), "something counts in every round"
                self.dropped |= {(fact.experiment, fact.round, s) for s in fact.shards}
            case out.Improved():
                assert fact.model is not None
                assert (fact.experiment, fact.model.name) not in self.discarded
                self.best[fact.experiment] = fact
            case out.Rescheduled(change="paused" | "continued" | "set aside"):
                assert (fact.experiment in self.paused) == (fact.change != "paused")
                self.paused ^= {fact.experiment} if fact.change != "set aside" else set()
            case out.ForecastRecorded() | out.HandOverAsked() | out.Withheld() | out.Quarantined():
                assert fact.attempt in self.assigned
            case out.Resized() | out.WorkerRequested() | out.Explained() | out.Rescheduled():
                pass

    def _see_command(self, scheduler: Scheduler, command: out.Command) -> None:
        match command:
            case out.Assign(assigned):
                self._ask(assigned)
                self._leads(assigned.experiment, assigned.model, command.leading)
            case out.Adopt():
                assert all(self.assigned[attempt] for attempt, _ in command.attempts)
            case out.Gather():
                self._gather(scheduler, command)
            case out.Aggregate():
                self._aggregate(command)
            case out.Evaluate():
                self.evaluated[command.experiment, command.round] += 1
                self.measuring.add((command.experiment, command.round, command.part))
                self._leads(command.experiment, command.model, command.leading)
            case out.Publish():
                self._publish(command)
            case out.Discard():
                self._discard(scheduler, command)
            case out.Conclude():
                self.kept |= {(command.experiment, file.name) for file in command.kept}
            case out.Prepare() | out.Cancel() | out.HandOver() | out.Dismiss():
                pass

    def _gather(self, scheduler: Scheduler, command: out.Gather) -> None:
        """What is summed early is an update that counts, and moves the newest version."""
        experiment = scheduler.state.experiments[command.experiment]
        assert experiment.spec.in_step
        assert experiment.round is not None
        task = experiment.round.tasks[command.shard]
        assert (task.update, task.base) == (command.update, command.base)
        assert (command.round, command.model) == (experiment.version, experiment.model)
        assert not experiment.applying

    def _belong_together(self, output: Output) -> None:
        """What happened is done: whose attempt is assigned is asked, who is gone is forgotten."""
        asked = {one.assigned for one in output.commands if isinstance(one, out.Assign)}
        assert asked >= {one for one in output.facts if isinstance(one, out.Assigned)}
        gone = [one.worker for one in output.facts if isinstance(one, out.Dismissed)]
        assert gone == [one.worker for one in output.commands if isinstance(one, out.Dismiss)]
        over = [one.experiment for one in output.facts if isinstance(one, out.Concluded)]
        assert over == [one.experiment for one in output.commands if isinstance(one, out.Conclude)]

    def _see_event(self, event: on.Event) -> None:
        if isinstance(event, on.ExperimentSubmitted):
            self.specs.setdefault(event.experiment, event)
        if isinstance(event, on.WorkerJoined):
            self.here.add(event.worker)
            self.awaited.discard(event.worker)
        if isinstance(event, on.UpdatePublished) and event.attempt in self.assigned:
            self.reported |= {
                (event.attempt.experiment, file.name)
                for file in (event.update.file, event.update.optimizer_state)
                if file is not None
            }
        if isinstance(event, on.Aggregated):
            self.aggregated[event.experiment, event.round] += 1
            self.newest[event.experiment] = event.model
            self.versions.setdefault((event.experiment, event.round + 1), event.model)
            self.applied.update((event.experiment, *part) for part in event.parts)
        if isinstance(event, on.Evaluated):
            self.measuring.remove((event.experiment, event.round, event.part))
            validates = self.specs[event.experiment].spec.validation
            if validates and event.part == "test":
                self.tested[event.experiment] = event
            else:
                self.values.setdefault(event.experiment, {})[event.round] = event.evaluation.loss
        if isinstance(event, on.ModelPublished) and event.experiment in self.asked_for:
            self.results.setdefault(event.experiment, event.model)

    def _assign(self, fact: out.Assigned) -> None:
        assert fact.attempt not in self.assigned, "an attempt is made once"
        assert fact.experiment not in self.paused, "a paused experiment gives no new tasks"
        assert _task(fact.attempt) not in self.contributions, "what counts is not done again"
        newest = self.saved.get(_task(fact.attempt))
        assert fact.snapshot == newest, "an attempt goes on from the newest snapshot"
        if self.specs[fact.experiment].spec.overlap:
            self._assign_ahead(fact)
        self.assigned[fact.attempt] = fact

    def _assign_ahead(self, fact: out.Assigned) -> None:
        """Look from what a task begins whose round may overlap with the one before."""
        name, number, shard = _task(fact.attempt)
        version = name, max(0, number - 1)
        first = self.versions.setdefault((name, 0), fact.model)
        assert fact.model == (self.versions[version] if version[1] else first), "by its number"
        former = self.contributions[name, number - 1, shard] if number else None
        assert fact.step == (former.file if former is not None else None)
        assert fact.optimizer_state == (former.optimizer_state if former is not None else None)
        assert fact.step is None or (name, fact.step.name) not in self.discarded

    def _ask(self, again: out.Assigned) -> None:
        """Look whether a worker is asked for what is its to do, for the first time or again."""
        assert again.worker in self.here, "only who has registered is asked"
        first = self.assigned[again.attempt]
        assert (first.worker, first.model) == (again.worker, again.model), "the same is asked for"
        assert first.optimizer_state == again.optimizer_state
        assert _task(again.attempt) not in self.contributions, "what counts is not done again"
        assert again.snapshot == self.saved.get(_task(again.attempt))

    def _accept(self, event: on.Event, fact: out.Accepted) -> None:
        assert isinstance(event, on.UpdatePublished)
        assert (event.attempt, event.update) == (fact.attempt, fact.update)
        assert fact.attempt in self.assigned, "only what was asked for counts"
        assert (fact.attempt.experiment, fact.update.file.name) not in self.discarded
        assert fact.completion_seconds >= 0
        assert _task(fact.attempt) not in self.contributions, "a task counts once"
        self.contributions[_task(fact.attempt)] = fact.update
        self.saved.pop(_task(fact.attempt), None)

    def _save(self, event: on.Event, fact: out.Saved) -> None:
        assert isinstance(event, on.HeartbeatReceived)
        assert fact.snapshot in [progress.snapshot for progress in event.running]
        assert (fact.attempt.experiment, fact.snapshot.file.name) not in self.discarded
        former = self.saved.get(_task(fact.attempt))
        assert former is None or former.steps_done < fact.snapshot.steps_done
        self.saved[_task(fact.attempt)] = fact.snapshot

    def _give_up(self, event: on.Event, fact: out.GivenUp) -> None:
        if isinstance(event, on.AggregationFailed) and fact.failure is FailureKind.STORE:
            del self.contributions[_task(fact.attempt)]
        else:
            assert _task(fact.attempt) not in self.contributions

    def _leads(self, name: str, model: PublishedFile, leading: tuple[PublishedFile, ...]) -> None:
        """Look whether a version can be read that may be a step: back to one that is whole."""
        numbers = {file.name: number for (of, number), file in self.versions.items() if of == name}
        chain = [numbers.get(file.name, 0) for file in (*leading, model)]
        assert chain == list(range(chain[0], chain[0] + len(chain))), "each is a step from the last"
        assert chain[0] == 0 or (name, chain[0]) in self.whole
        assert not any((name, number) in self.whole for number in chain[1:])
        assert not any((name, file.name) in self.discarded for file in leading)

    def _aggregate(self, command: out.Aggregate) -> None:
        name, number = command.experiment, command.round
        if command.whole:
            self.whole.add((name, number + 1))
        assert self.aggregated[name, number] == 0
        assert number == 0 or self.aggregated[name, number - 1] == 1
        shards = range(self.specs[name].spec.shards)
        if not command.in_step:
            self._apply(command)
            return
        there = [shard for shard in shards if (name, number, shard) not in self.dropped]
        wanted = tuple(self.contributions[name, number, shard] for shard in there)
        assert list(command.shards) == there
        assert command.updates == wanted, "one update a shard, in shard order"

    def _apply(self, command: out.Aggregate) -> None:
        """Look at the version of an asynchronous mode."""
        for part, push in zip(command.parts, command.pushes, strict=True):
            task = command.experiment, *part
            assert part == (push.round, push.shard)
            assert push.update == self.contributions[task]
            assert self.applied[task] == 0, "an update is in one version"
            assert (command.experiment, push.base.name) not in self.discarded

    def _publish(self, command: out.Publish) -> None:
        name = command.experiment
        self._leads(name, command.model, command.leading)
        assert name not in self.asked_for, "the result is asked for once"
        assert command.model == self.newest[name], "the newest version is the result"
        assert (name, command.model.name) not in self.discarded
        spec = self.specs[name].spec
        if spec.in_step:
            assert self.aggregated[name, self._last_round(name)] == 1
        else:
            tasks = [(name, r, s) for r in range(spec.rounds) for s in range(spec.shards)]
            assert [self.applied[task] for task in tasks] == [1] * len(tasks), "each counts once"
        assert not any(who == name for who, *_ in self.measuring), "all is measured before"
        keeps = self.specs[name].spec.keep_best is not None
        assert command.best == (self.best[name].model if keeps else None)
        assert command.best is None or (name, command.best.name) not in self.discarded
        if self.specs[name].spec.validation:
            of = self.best[name].round if keeps else self._last_round(name)
            assert self.tested[name].round == of, "what is published first is tested"
        self.asked_for[name] = command.model

    def _last_round(self, name: str) -> int:
        """Return the round with which an experiment ends, by the losses that were reported."""
        spec, values = self.specs[name].spec, self.values.get(name, {})
        best = -1
        for number in sorted(values):
            if best < 0 or values[number] < values[best]:
                best = number
            if spec.stop_after is not None and number - best >= spec.stop_after:
                return number
        return spec.epochs - 1

    def _conclude(self, fact: out.Concluded) -> None:
        name = fact.experiment
        finished = fact.ending is ExperimentState.FINISHED
        assert finished == (name in self.results), "published and finished are one"
        assert fact.model == self.results.get(name)
        self.concluded[name] = fact

    def _discard(self, scheduler: Scheduler, command: out.Discard) -> None:
        experiment = scheduler.state.experiments[command.experiment]
        tasks = [task for task in experiment.open_tasks() if not task.is_over]
        updates = [task.update for task in tasks if task.update is not None]
        needed = {file.name for file in experiment.models}
        needed |= {file.name for file in experiment.optimizer_states.values()}
        needed |= {file.name for file in experiment.steps.values()}
        needed |= {update.file.name for update in updates}
        needed |= {u.optimizer_state.name for u in updates if u.optimizer_state is not None}
        needed |= {task.snapshot.file.name for task in tasks if task.snapshot}
        if command.experiment in self.asked_for:
            needed.add(self.asked_for[command.experiment].name)
        names = {file.name for file in command.files}
        assert not names & needed, "a file that is needed stays"
        self.discarded |= {(command.experiment, name) for name in names}

    def see_a_restart(self, scheduler: Scheduler) -> None:
        """Forget what a manager that died had asked for; what it had kept must stand."""
        self.here, self.awaited = set(), set(scheduler.state.workers.names)
        self.measuring.clear()
        self.asked_for = {name: self.asked_for[name] for name in self.results}

    def see_the_end(self, scheduler: Scheduler) -> None:
        """Say whether all is as it should be when nothing is left to do."""
        assert set(self.concluded) == set(self.specs), "every experiment ends"
        assert self.reported - self.kept <= self.discarded, "no other file of an update stays"
        assert not self.kept & self.discarded, "states that are kept stay"
        for name, experiment in scheduler.state.experiments.items():
            ending, spec = self.concluded[name], experiment.spec
            assert experiment.life.state == ending.ending
            if ending.ending is ExperimentState.FINISHED:
                rounds = range(self._last_round(name) + 1)
                trained = [self.aggregated[name, number] for number in range(spec.epochs)]
                assert trained == [int(number in rounds) for number in range(spec.epochs)]
                measured = any(self.evaluated[name, number] for number in rounds)
                assert measured == (spec.evaluate_every > 0)
                latest = experiment.last_evaluation
                last = latest and latest.metrics["accuracy"]
                tested = {self.tested[name].round} if name in self.tested else {rounds[-1]}
                assert last in {None, *tested}, "the last counts"
                assert ending.model == experiment.result
                assert self.asked_for[name] == experiment.models[-1]
                leading = WHOLE_EVERY - 1 if spec.publishes_steps else 0
                kept = max(spec.keep_models or 1, 1 + spec.overlap)
                assert len(experiment.models) <= kept + leading
                if spec.keep_best is not None:
                    lowest = min(self.values[name].values())
                    assert self.best[name].value == lowest


def _experiment(one: out.Command | out.Fact) -> str | None:
    if isinstance(one, out.Dismiss | out.Dismissed):
        return None
    if isinstance(one, out.Assign):
        return one.assigned.attempt.experiment
    if isinstance(one, out.Cancel | out.HandOver):
        return one.attempt.experiment
    return one.experiment


def _task(attempt: AttemptId) -> tuple[str, int, int]:
    return (attempt.experiment, attempt.round, attempt.shard)
