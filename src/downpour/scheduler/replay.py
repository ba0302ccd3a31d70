"""What must survive a scheduler, and how another one is brought to the point where it ended.

`entries` picks from an event and its commands what changes results: who submitted what, what was
assigned, accepted, given up, aggregated and evaluated, and how an experiment ended. Whoever drives
the core keeps these, in order, before he acts on the commands. `Replay` takes them in again: it is
the same scheduler, and comes to the same books (`durable` shows them), except for the workers, who
must show themselves anew. `resume` then asks once more for whatever was outstanding.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from downpour.scheduler import commands as do
from downpour.scheduler import events as on
from downpour.scheduler.core import Scheduler
from downpour.scheduler.experiment import Experiment
from downpour.scheduler.failures import Failure
from downpour.scheduler.round import Round, Task
from downpour.values import (
    AttemptId,
    Evaluation,
    ExperimentState,
    PublishedFile,
    Snapshot,
    TaskState,
    Update,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """Where an experiment stood when a round began.

    After its submission and its preparation nothing else need be known of what came before.
    """

    experiment: str
    rounds_done: int
    models: tuple[PublishedFile, ...]
    optimizer_states: tuple[tuple[int, PublishedFile], ...]
    evaluating: tuple[tuple[int, PublishedFile], ...]
    evaluated_round: int
    last_evaluation: Evaluation | None


Entry = (
    on.ExperimentSubmitted
    | on.Prepared
    | on.Aggregated
    | on.Evaluated
    | on.ModelPublished
    | do.Assign
    | do.Accept
    | do.Save
    | do.Drop
    | do.Resize
    | do.GiveUp
    | do.Conclude
    | Checkpoint
)

_EVENTS = on.ExperimentSubmitted, on.Prepared, on.Aggregated, on.Evaluated, on.ModelPublished
_COMMANDS = do.Assign, do.Accept, do.Save, do.Drop, do.Resize, do.GiveUp, do.Conclude


def entries(event: on.Event, commands: Sequence[do.Command]) -> Iterator[Entry]:
    """Pick what must be kept of an event and of what the core made of it, in order."""
    if isinstance(event, _EVENTS):
        yield event
    for command in commands:
        if isinstance(command, _COMMANDS):
            yield command


def checkpoint(
    core: Scheduler, event: on.Event, commands: Sequence[do.Command]
) -> Checkpoint | None:
    """Return where an experiment stands if the event has just begun a round of it; else None.

    It stands for everything before; the assignments among the commands come after it.
    """
    experiment = (
        core.experiments.get(event.experiment) if isinstance(event, on.Aggregated) else None
    )
    if experiment is None or experiment.round is None:
        return None
    assigned = sum(isinstance(command, do.Assign) for command in commands)
    if experiment.round.published or assigned != sum(t.attempts for t in experiment.round.tasks):
        return None  # the round had begun before
    return Checkpoint(
        experiment=experiment.name,
        rounds_done=experiment.rounds_done,
        models=tuple(experiment.models),
        optimizer_states=tuple(sorted(experiment.optimizer_states.items())),
        evaluating=tuple(sorted(experiment.evaluating.items())),
        evaluated_round=experiment.evaluated_round,
        last_evaluation=experiment.last_evaluation,
    )


def experiment_of(entry: Entry) -> str:
    """Return the experiment that an entry is about."""
    if isinstance(entry, do.Assign | do.Accept | do.Save | do.GiveUp):
        return entry.attempt.experiment
    return entry.experiment


def must_last(entry: Entry) -> bool:
    """Whether nothing may follow from an entry before it is durable.

    An assignment that is forgotten costs a second attempt at the shard, and changes no result.
    """
    return not isinstance(entry, do.Assign)


@dataclass(frozen=True, slots=True)
class DurableTask:
    """A task of the current round: how often it was tried, who is at it, whose update it has."""

    state: TaskState
    samples: int
    attempts: int
    failed_on: tuple[str, ...]
    held_by: tuple[tuple[str, AttemptId], ...]
    snapshot: Snapshot | None
    published_by: tuple[str | None, AttemptId | None]
    update: Update | None


@dataclass(frozen=True, slots=True)
class DurableExperiment:
    """What of an experiment must be the same after a restart."""

    name: str
    state: ExperimentState
    reason: str
    dataset: str | None
    shard_samples: tuple[int, ...]
    rounds_done: int
    models: tuple[PublishedFile, ...]
    optimizer_states: tuple[tuple[int, PublishedFile], ...]
    evaluating: tuple[int, ...]
    last_evaluation: Evaluation | None
    result: PublishedFile | None
    tasks: tuple[DurableTask, ...]


def durable(core: Scheduler) -> tuple[DurableExperiment, ...]:
    """Show what must be the same after a restart, experiments in the order of submission."""
    return tuple(_projected(experiment) for experiment in core.experiments.values())


class Replay(Scheduler):
    """A scheduler that can take in what another one left behind, before it takes events."""

    def replay(self, at_seconds: float, entry: Entry) -> None:
        """Take in what was kept; entries come in the order in which they were made."""
        self.now_seconds = max(self.now_seconds, at_seconds)
        if isinstance(entry, _EVENTS):
            self.directing.at_rest = True  # what was decided then comes next, as an entry
            self.handle(entry)
            self.directing.at_rest = False
            return
        match entry:
            case do.Assign():
                found = self._round_of(entry.attempt)
                found.assign(entry.attempt.shard, entry.worker, at_seconds)
            case do.Accept():
                found = self._round_of(entry.attempt)
                found.publish(entry.attempt, entry.worker, entry.update, at_seconds)
                self.contributions.aggregate_if_complete(found)
            case do.Save():
                self._round_of(entry.attempt).save(entry.attempt.shard, entry.snapshot)
            case do.Drop():
                current = self._current(entry.experiment, entry.round)
                current.drop(entry.shards)
                self.contributions.aggregate_if_complete(current)
            case do.Resize():
                self._current(entry.experiment, entry.round).resize(entry.samples)
            case do.GiveUp():
                self._replay_give_up(entry)
            case do.Conclude():
                self._replay_conclude(entry)
            case Checkpoint():
                self._go_to(entry)

    def take_in(self, experiments: Iterable[Experiment], at_seconds: float) -> None:
        """Take in, while empty, experiments that were replayed each by itself, in their order.

        At most one of them has begun and not ended: it is active, else the first that waits.
        """
        self.now_seconds = max(self.now_seconds, at_seconds)
        for each in experiments:
            self.experiments[each.name] = each
            if each.life.state is ExperimentState.RUNNING:
                self.active = each
            elif (
                each.life.state is ExperimentState.PREPARING
            ):  # as it was alone, it had its turn at once
                waits = Experiment(each.name, each.spec, each.submitted_at_seconds)
                self.experiments[each.name] = waits
        self.turns.activate_next()

    def resume(self) -> list[do.Command]:
        """Take up the active experiment: ask for its dataset, and expect its workers back.

        Whoever was busy keeps what it held, and is asked for nothing before it has registered with
        this manager. Where it does not in time, others get what it held.
        """
        self.commands = []
        experiment = self.active
        if experiment is None:
            return []
        if experiment.life.state is ExperimentState.RUNNING:
            experiment.ready = False
            for attempt, worker in experiment.round.holders() if experiment.round else ():
                self.workers.expect(worker, attempt, self.now_seconds)
        self.turns.prepare(experiment)
        return self.commands

    def _replay_give_up(self, entry: do.GiveUp) -> None:
        current = self._round_of(entry.attempt)
        if current.tasks[entry.attempt.shard].life.state is TaskState.PUBLISHED:
            current.aggregating = False
            self.contributions.refuse(current, entry.attempt.shard, entry.reason)
        else:
            failure = Failure(entry.failure, entry.reason)
            self.contributions.take_back(current, entry.attempt.shard, entry.worker, failure)
        found = self.find(entry.attempt)
        if found is not None:  # the conclusion that followed may not have been kept any more
            self.contributions.fail_if_hopeless(found, entry.reason)

    def _replay_conclude(self, entry: do.Conclude) -> None:
        experiment = self.experiments[entry.experiment]
        if experiment.life.may("cancel"):  # one that finished did so when its model was published
            experiment.asked_wrongly = entry.asked_wrongly
            cancelled = entry.ending is ExperimentState.CANCELLED
            experiment.life.step("cancel" if cancelled else "fail")
            self.turns.conclude(experiment, entry.ending, entry.reason)

    def _go_to(self, entry: Checkpoint) -> None:
        experiment = self.experiments[entry.experiment]
        experiment.rounds_done = entry.rounds_done
        experiment.models = list(entry.models)
        experiment.optimizer_states = dict(entry.optimizer_states)
        experiment.evaluating = dict(entry.evaluating)
        experiment.evaluated_round = entry.evaluated_round
        experiment.last_evaluation = entry.last_evaluation
        experiment.start_round()

    def _round_of(self, attempt: AttemptId) -> Round:
        return self._current(attempt.experiment, attempt.round)

    def _current(self, experiment: str, number: int) -> Round:
        """Return the current round if it is that one; entries out of order raise ValueError."""
        current = self.active.round if self.active else None
        if current is None or (experiment, number) != (current.experiment, current.number):
            raise ValueError(f"round {number} of {experiment} is not the current one")
        return current


def _projected(experiment: Experiment) -> DurableExperiment:
    tasks = experiment.round.tasks if experiment.round else ()
    return DurableExperiment(
        name=experiment.name,
        state=experiment.life.state,
        reason=experiment.reason,
        dataset=experiment.dataset,
        shard_samples=experiment.shard_samples,
        rounds_done=experiment.rounds_done,
        models=tuple(experiment.models),
        optimizer_states=tuple(sorted(experiment.optimizer_states.items())),
        evaluating=tuple(sorted(experiment.evaluating)),
        last_evaluation=experiment.last_evaluation,
        result=experiment.result,
        tasks=tuple(_projected_task(task) for task in tasks),
    )


def _projected_task(task: Task) -> DurableTask:
    return DurableTask(
        state=task.life.state,
        samples=task.offer.samples,
        attempts=task.attempts,
        failed_on=task.offer.failed_on,
        held_by=tuple(sorted(task.held_by.items())),
        snapshot=task.snapshot,
        published_by=(task.worker, task.attempt),
        update=task.update,
    )
