"""A judge of the scheduler, who knows events and commands and not the core's state."""

from __future__ import annotations

from collections import Counter

from downpour.scheduler import Scheduler
from downpour.scheduler import commands as do
from downpour.scheduler import events as on
from downpour.values import AttemptId, ExperimentState, PublishedFile, Snapshot, Update


class Judge:
    """Follows commands and keeps what they have promised."""

    def __init__(self) -> None:
        self.specs: dict[str, on.ExperimentSubmitted] = {}
        self.assigned: dict[AttemptId, do.Assign] = {}
        self.contributions: dict[tuple[str, int, int], Update] = {}
        self.dropped: set[tuple[str, int, int]] = set()
        self.saved: dict[tuple[str, int, int], Snapshot] = {}
        self.aggregated: Counter[tuple[str, int]] = Counter()
        self.newest: dict[str, PublishedFile] = {}
        self.evaluated: Counter[tuple[str, int]] = Counter()
        self.measuring: set[tuple[str, int]] = set()
        self.asked_for: dict[str, PublishedFile] = {}
        self.results: dict[str, PublishedFile] = {}
        self.concluded: dict[str, do.Conclude] = {}
        self.here: set[str] = set()
        self.awaited: set[str] = set()
        self.reported: set[tuple[str, str]] = set()
        self.discarded: set[tuple[str, str]] = set()

    def see(self, scheduler: Scheduler, event: on.Event, commands: list[do.Command]) -> None:
        """Take in what came out of an event; raises AssertionError where that was wrong."""
        self._see_event(event)
        for command in commands:
            assert command.cause == scheduler.state.events_handled
            self._in_time(command)
            self._see_command(scheduler, event, command)
        registered = {worker.name for worker in scheduler.state.workers if not worker.is_awaited}
        assert self.here == registered, "who is gone is dismissed, once"
        assert set(scheduler.state.workers.names) - registered <= self.awaited
        if isinstance(event, on.WorkerLeft | on.WorkerLost):
            assert event.worker not in self.here, "who says goodbye is gone"

    def _see_command(  # noqa: C901, PLR0912 - one arm a command
        self, scheduler: Scheduler, event: on.Event, command: do.Command
    ) -> None:
        match command:
            case do.Assign():
                self._assign(command)
            case do.Repeat():
                self._repeat(command.assignment)
            case do.Accept():
                self._accept(event, command)
            case do.Save():
                self._save(event, command)
            case do.Contradict():
                assert command.update.file.checksum != command.accepted.file.checksum
            case do.Adopt():
                assert all(self.assigned[attempt] for attempt, _ in command.attempts)
            case do.GiveUp():
                self._give_up(event, command)
            case do.Aggregate():
                self._aggregate(command)
            case do.Evaluate():
                self.evaluated[command.experiment, command.round] += 1
                self.measuring.add((command.experiment, command.round))
            case do.Publish():
                self._publish(command)
            case do.Discard():
                self._discard(scheduler, command)
            case do.Conclude():
                self._conclude(command)
            case do.Dismiss():
                (self.here if command.worker in self.here else self.awaited).remove(command.worker)
            case do.Drop():
                assert any(
                    (command.experiment, command.round, shard) in self.contributions
                    for shard in range(self.specs[command.experiment].spec.shards)
                ), "something counts in every round"
                self.dropped |= {(command.experiment, command.round, s) for s in command.shards}
            case do.Prepare() | do.Cancel() | do.HandOver() | do.Resize() | do.RequestWorker():
                pass
            case do.Foresee():
                assert command.attempt in self.assigned

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
        if isinstance(event, on.Evaluated):
            self.measuring.remove((event.experiment, event.round))
        if isinstance(event, on.ModelPublished) and event.experiment in self.asked_for:
            self.results.setdefault(event.experiment, event.model)

    def _in_time(self, command: do.Command) -> None:
        late = _experiment(command) in self.concluded
        assert not late or isinstance(command, do.Discard), f"{command} comes after the end"

    def _assign(self, command: do.Assign) -> None:
        assert command.worker in self.here, "only who has registered is asked"
        assert command.attempt not in self.assigned, "an attempt is made once"
        assert _task(command.attempt) not in self.contributions, "what counts is not done again"
        newest = self.saved.get(_task(command.attempt))
        assert command.snapshot == newest, "whoever is asked goes on from the newest snapshot"
        self.assigned[command.attempt] = command

    def _repeat(self, again: do.Assign) -> None:
        assert again.worker in self.here, "only who has registered is asked"
        first = self.assigned[again.attempt]
        assert (first.worker, first.model) == (again.worker, again.model), "the same is asked for"
        assert first.optimizer_state == again.optimizer_state
        assert _task(again.attempt) not in self.contributions, "what counts is not done again"
        assert again.snapshot == self.saved.get(_task(again.attempt))

    def _accept(self, event: on.Event, command: do.Accept) -> None:
        assert isinstance(event, on.UpdatePublished)
        assert (event.attempt, event.update) == (command.attempt, command.update)
        assert command.attempt in self.assigned, "only what was asked for counts"
        assert (command.attempt.experiment, command.update.file.name) not in self.discarded
        assert command.completion_seconds >= 0
        assert _task(command.attempt) not in self.contributions, "a task counts once"
        self.contributions[_task(command.attempt)] = command.update
        self.saved.pop(_task(command.attempt), None)

    def _save(self, event: on.Event, command: do.Save) -> None:
        assert isinstance(event, on.HeartbeatReceived)
        assert command.snapshot in [progress.snapshot for progress in event.running]
        assert (command.attempt.experiment, command.snapshot.file.name) not in self.discarded
        former = self.saved.get(_task(command.attempt))
        assert former is None or former.steps_done < command.snapshot.steps_done
        self.saved[_task(command.attempt)] = command.snapshot

    def _give_up(self, event: on.Event, command: do.GiveUp) -> None:
        if isinstance(event, on.UpdatesRefused):
            del self.contributions[_task(command.attempt)]
        else:
            assert _task(command.attempt) not in self.contributions

    def _aggregate(self, command: do.Aggregate) -> None:
        name, number = command.experiment, command.round
        shards = range(self.specs[name].spec.shards)
        there = [shard for shard in shards if (name, number, shard) not in self.dropped]
        wanted = tuple(self.contributions[name, number, shard] for shard in there)
        assert list(command.shards) == there
        assert command.updates == wanted, "one update a shard, in shard order"
        assert self.aggregated[name, number] == 0
        assert number == 0 or self.aggregated[name, number - 1] == 1

    def _publish(self, command: do.Publish) -> None:
        name = command.experiment
        assert name not in self.asked_for, "the result is asked for once"
        assert command.model == self.newest[name], "the newest version is the result"
        assert (name, command.model.name) not in self.discarded
        assert self.aggregated[name, self.specs[name].spec.epochs - 1] == 1
        assert not any(who == name for who, _ in self.measuring), "all is measured before"
        self.asked_for[name] = command.model

    def _conclude(self, command: do.Conclude) -> None:
        name = command.experiment
        finished = command.ending is ExperimentState.FINISHED
        assert finished == (name in self.results), "published and finished are one"
        assert command.model == self.results.get(name)
        self.concluded[name] = command

    def _discard(self, scheduler: Scheduler, command: do.Discard) -> None:
        experiment = scheduler.state.experiments[command.experiment]
        current = experiment.round
        updates = current.updates() if current else ()
        needed = {file.name for file in experiment.models}
        needed |= {file.name for file in experiment.optimizer_states.values()}
        needed |= {update.file.name for update in updates}
        needed |= {u.optimizer_state.name for u in updates if u.optimizer_state is not None}
        needed |= {t.snapshot.file.name for t in (current.tasks if current else ()) if t.snapshot}
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
        assert self.reported <= self.discarded, "every update's file is removed in the end"
        for name, experiment in scheduler.state.experiments.items():
            ending, spec = self.concluded[name], experiment.spec
            assert experiment.life.state == ending.ending
            if ending.ending is ExperimentState.FINISHED:
                rounds = range(spec.epochs)
                assert [self.aggregated[name, number] for number in rounds] == [1] * spec.epochs
                measured = any(self.evaluated[name, number] for number in rounds)
                assert measured == (spec.evaluate_every > 0)
                latest = experiment.last_evaluation
                assert latest is None or latest.accuracy == spec.epochs - 1, "the last counts"
                assert ending.model == experiment.result
                assert self.asked_for[name] == experiment.models[-1]
                assert len(experiment.models) <= spec.keep_models


def _experiment(command: do.Command) -> str | None:
    if isinstance(command, do.Dismiss):
        return None
    if isinstance(command, do.Repeat):
        return command.assignment.attempt.experiment
    if isinstance(
        command,
        do.Assign
        | do.Foresee
        | do.Cancel
        | do.HandOver
        | do.Accept
        | do.Save
        | do.Contradict
        | do.GiveUp,
    ):
        return command.attempt.experiment
    return command.experiment


def _task(attempt: AttemptId) -> tuple[str, int, int]:
    return (attempt.experiment, attempt.round, attempt.shard)
