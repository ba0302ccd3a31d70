"""The state that must survive a scheduler's crash, and how another scheduler restores it.

`entries` picks the values that change results from an event and its facts: submitted, assigned,
accepted, given up, aggregated and evaluated work, and the end of an experiment. A driver journals
them, in order, before it acts on the commands. `Scheduler.replay` takes them in again and reaches
the same state (`durable` shows it), except for the workers, which must register again.
`Scheduler.resume` then repeats the outstanding requests.

The journal also holds all other facts, and the facts that only the manager `Observed`. These are
for people, and replay skips them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, assert_never

from downpour.base.states import Evaluation, ExperimentState, Failure, TaskState
from downpour.base.values import AttemptId, PublishedFile, Snapshot, TrialSums, Update
from downpour.core.scheduler import events as on
from downpour.core.scheduler import facts, queue, updates
from downpour.core.scheduler.experiment import Experiment
from downpour.core.scheduler.round import Round, ShardTask
from downpour.core.scheduler.state import SchedulerState
from downpour.core.scheduler.steps import Best


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """The state of an experiment at the beginning of a round.

    With the experiment's submission and preparation, replay begins here and needs no earlier entry.
    """

    experiment: str
    rounds_done: int
    models: tuple[PublishedFile, ...]
    optimizer_states: tuple[tuple[int, PublishedFile], ...]
    evaluating: tuple[tuple[int, PublishedFile], ...]
    evaluated_round: int
    last_evaluation: Evaluation | None
    best: Best | None = None
    outer: PublishedFile | None = None


EntryEvent = on.ExperimentSubmitted | on.Prepared | on.Aggregated | on.Evaluated | on.ModelPublished
EntryFact = (
    facts.Assigned
    | facts.Accepted
    | facts.Saved
    | facts.Dropped
    | facts.Resized
    | facts.GivenUp
    | facts.Concluded
)
Entry = EntryEvent | EntryFact | Checkpoint
"""The input of replay."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """Facts that only an experiment's manager knows; `line` goes to `record/view.py`."""

    experiment: str
    line: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class TakenUp:
    """A manager continues from here, so later entries of an earlier manager do not count."""


Journaled = Entry | facts.Fact | Observed | TakenUp
"""The entries of a journal."""


def entries(event: on.Event, happened: Sequence[facts.Fact]) -> Iterator[Entry]:
    """Return the entries of an event and its facts that the driver must journal, in order."""
    if isinstance(event, EntryEvent):
        yield event
    for fact in happened:
        if isinstance(fact, EntryFact):
            yield fact


def checkpoint(
    state: SchedulerState, event: on.Event, happened: Sequence[facts.Fact]
) -> Checkpoint | None:
    """Return an experiment's checkpoint if the event has just begun a round, else None.

    Replay then needs no entry before the checkpoint, not even the event; the facts follow it.
    """
    experiment = (
        state.experiments.get(event.experiment) if isinstance(event, on.Aggregated) else None
    )
    # If shards are rounds apart, rounds begin before all earlier ones are over. So no moment is
    # without tasks, and `replay` needs the whole journal.
    if experiment is None or experiment.round is None or not experiment.spec.in_step:
        return None
    if experiment.mode.overlaps:
        return None
    assigned = sum(isinstance(fact, facts.Assigned) for fact in happened)
    if experiment.round.published or assigned != sum(t.attempts for t in experiment.round.tasks):
        # The round had begun earlier, so a checkpoint would forget its assignments and updates. The
        # event was a repeated one, for a round that is over.
        return None
    return Checkpoint(
        experiment=experiment.name,
        rounds_done=experiment.rounds_done,
        models=tuple(experiment.models),
        optimizer_states=tuple(sorted(experiment.optimizer_states.items())),
        evaluating=tuple(sorted(experiment.evaluating.items())),
        evaluated_round=experiment.evaluated_round,
        last_evaluation=experiment.last_evaluation,
        best=experiment.best,
        outer=experiment.outer,
    )


def must_last(state: SchedulerState, entry: Journaled) -> bool:
    """Whether an entry must be durable before anything follows from it.

    Entries that do not affect results need not be durable; the manager syncs them with the next
    entry that does. An assignment need not be durable if another one would ask for the same work.
    If it is lost, that costs a second attempt at the shard, and changes no result. So the workers
    of a round need not wait for the disk. But an assignment may decide the shard's start version,
    or the share to train. Then a lost one matters: the update of its attempt would count for
    another attempt with the same number.
    """
    if not isinstance(entry, facts.Assigned):
        return isinstance(entry, Entry)
    experiment = state.experiments.get(entry.experiment)
    if experiment is None:
        return False
    spec = experiment.spec
    return not spec.in_step or state.policies[spec.policy].shortens


@dataclass(frozen=True, slots=True)
class DurableTask:
    """The parts of a task in the current round that a restart must preserve."""

    state: TaskState
    samples: int
    attempts: int
    failed_on: tuple[str, ...]
    failures: int
    held_by: tuple[tuple[str, AttemptId], ...]
    snapshot: Snapshot | None
    published_by: tuple[str | None, AttemptId | None]
    update: Update | None


@dataclass(frozen=True, slots=True)
class DurableExperiment:
    """The parts of an experiment that a restart must preserve."""

    name: str
    state: ExperimentState
    reason: str
    dataset: str | None
    frozen: PublishedFile | None
    trial: TrialSums | None
    shard_samples: tuple[int, ...]
    rounds_done: int
    models: tuple[PublishedFile, ...]
    outer: PublishedFile | None
    optimizer_states: tuple[tuple[int, PublishedFile], ...]
    steps: tuple[tuple[int, PublishedFile], ...]
    own: tuple[tuple[int, PublishedFile], ...]
    evaluating: tuple[int, ...]
    evaluated_round: int
    last_evaluation: Evaluation | None
    best: Best | None
    tested: Evaluation | None
    result: PublishedFile | None
    tasks: tuple[DurableTask, ...]


def durable(state: SchedulerState) -> tuple[DurableExperiment, ...]:
    """Return the state that a restart must preserve, in the order of submission."""
    # We leave out workers, timeouts and speeds: the scheduler relearns them, and they change no
    # result.
    return tuple(_projected(experiment) for experiment in state.experiments.values())


def apply(state: SchedulerState, at_seconds: float, entry: EntryFact | Checkpoint) -> None:
    """Take in a journaled fact, or a checkpoint."""
    match entry:
        case facts.Assigned():
            # We add no worker here: `Scheduler.resume` adds the ones that still hold an attempt.
            current = _round_of(state, entry.attempt)
            experiment = state.experiments[entry.experiment]
            experiment.assign(current, entry.attempt.shard, entry.worker, at_seconds, entry.share)
        case facts.Accepted():
            current = _round_of(state, entry.attempt)
            startup = entry.startup_seconds
            current.publish(entry.attempt, entry.worker, entry.update, at_seconds, startup)
            state.experiments[entry.experiment].arrive(entry.attempt, at_seconds)
        case facts.Saved():
            _round_of(state, entry.attempt).save(entry.attempt, entry.snapshot)
        case facts.Dropped():
            _current(state, entry.experiment, entry.round).drop(entry.shards)
        case facts.Resized():
            _current(state, entry.experiment, entry.round).resize(entry.samples)
        case facts.GivenUp():
            _give_up(state, entry)
        case facts.Concluded():
            _conclude(state, entry)
        case Checkpoint():
            _go_to(state.experiments[entry.experiment], entry)
        case _:
            assert_never(entry)


def take_up(state: SchedulerState, experiments: Iterable[Experiment]) -> None:
    """Take in experiments that were replayed separately, in the order of their submission."""
    for each in experiments:
        state.experiments[each.name] = each
        if each.life.state is ExperimentState.RUNNING:
            state.active = each
        elif each.life.state is ExperimentState.PREPARING:
            # In its separate replay it came first in the queue, but among others it may not.
            waits = Experiment(each.name, each.spec, each.submitted_at_seconds)
            state.experiments[each.name] = waits


def _give_up(state: SchedulerState, entry: facts.GivenUp) -> None:
    current = _round_of(state, entry.attempt)
    # Only a published task can have its update refused; all other attempts were running.
    if current.tasks[entry.attempt.shard].life.state is TaskState.PUBLISHED:
        experiment = state.experiments[entry.experiment]
        updates.refuse(state, experiment, current, entry.attempt.shard, entry.reason)
    else:
        failure = Failure(entry.failure, entry.reason)
        updates.take_back(state, current, entry.attempt.shard, entry.worker, failure)
    context = state.find(entry.attempt)
    # If the manager crashed in between, the conclusion that followed may be missing in the journal.
    if context is not None:
        updates.fail_if_hopeless(state, context, entry.reason)


def _conclude(state: SchedulerState, entry: facts.Concluded) -> None:
    experiment = state.experiments[entry.experiment]
    # An experiment that finished or failed has done so by an earlier entry.
    if experiment.life.may("cancel"):
        experiment.asked_wrongly = entry.asked_wrongly
        cancelled = entry.ending is ExperimentState.CANCELLED
        experiment.life.step("cancel" if cancelled else "fail")
        queue.conclude(state, experiment, entry.ending, entry.reason)


def _go_to(experiment: Experiment, entry: Checkpoint) -> None:
    experiment.rounds_done = experiment.version = entry.rounds_done
    experiment.models = list(entry.models)
    experiment.outer = entry.outer
    experiment.optimizer_states = dict(entry.optimizer_states)
    experiment.evaluating = dict(entry.evaluating)
    experiment.evaluated_round = entry.evaluated_round
    experiment.last_evaluation = entry.last_evaluation
    experiment.best = entry.best
    experiment.rounds, experiment.arrived = [], {}
    experiment.start_rounds()


def _round_of(state: SchedulerState, attempt: AttemptId) -> Round:
    return _current(state, attempt.experiment, attempt.round)


def _current(state: SchedulerState, experiment: str, number: int) -> Round:
    """Return the open round of this number; entries out of order raise ValueError."""
    active = state.active_as(experiment)
    current = active.round_of(number) if active is not None else None
    if current is None:
        raise ValueError(f"round {number} of {experiment} has not begun, or is over")
    return current


def _projected(experiment: Experiment) -> DurableExperiment:
    return DurableExperiment(
        name=experiment.name,
        state=experiment.life.state,
        reason=experiment.reason,
        dataset=experiment.dataset,
        frozen=experiment.frozen,
        trial=experiment.trial,
        shard_samples=experiment.shard_samples,
        rounds_done=experiment.rounds_done,
        models=tuple(experiment.models),
        outer=experiment.outer,
        optimizer_states=tuple(sorted(experiment.optimizer_states.items())),
        steps=tuple(sorted(experiment.steps.items())),
        own=tuple(sorted(experiment.own.items())),
        evaluating=tuple(sorted(experiment.evaluating)),
        evaluated_round=experiment.evaluated_round,
        last_evaluation=experiment.last_evaluation,
        best=experiment.best,
        tested=experiment.tested,
        result=experiment.result,
        tasks=tuple(map(_projected_task, experiment.open_tasks())),
    )


def _projected_task(task: ShardTask) -> DurableTask:
    return DurableTask(
        state=task.life.state,
        samples=task.offer.samples,
        attempts=task.attempts,
        failed_on=task.offer.failed_on,
        failures=task.failures,
        held_by=tuple(sorted(task.held_by.items())),
        snapshot=task.snapshot,
        published_by=(task.worker, task.attempt),
        update=task.update,
    )
