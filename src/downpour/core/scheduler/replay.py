"""The state that must survive a scheduler's crash, and how another scheduler restores it.

An `Entry` is an event or a fact that changes results: submitted, assigned, accepted, given up,
aggregated and evaluated work, and the end of an experiment. A driver journals them, in order,
before it acts on the commands. `Scheduler.replay` takes them in again and reaches the same state
(`durable` shows it), except for the workers, which must register again. `Scheduler.resume` then
repeats the outstanding requests. Replay skips what the journal holds for people alone.
"""

from collections.abc import Iterable
from copy import copy
from dataclasses import dataclass, field, fields, replace
from typing import Any, assert_never

from downpour.base.states import Evaluation, ExperimentState, Failure, TaskState
from downpour.base.values import AttemptId, PublishedFile, Snapshot, Update
from downpour.core.scheduler import audits, queue, updates
from downpour.core.scheduler import events as on
from downpour.core.scheduler import outputs as out
from downpour.core.scheduler.experiment import Experiment
from downpour.core.scheduler.queue import SchedulerState, TaskContext
from downpour.core.scheduler.round import Round, ShardTask, TaskKey, Unaudited
from downpour.core.scheduler.round_view import repeats
from downpour.core.stragglers.base import PendingTask


@dataclass(frozen=True, slots=True, kw_only=True)
class DurableTask:
    """The parts of a task in an open round that a restart must preserve; names of `ShardTask`."""

    state: TaskState
    offer: PendingTask
    samples: int
    share: float
    assigned_to: list[str]
    began_at: list[float]
    failed: list[Failure]
    furthered: set[int]
    excused: int
    first_to_count: int
    held_by: dict[str, AttemptId]
    snapshot: Snapshot | None
    base: PublishedFile | None
    base_version: int
    worker: str | None
    attempt: AttemptId | None
    update: Update | None
    withheld: list[out.Withheld] = field(default_factory=list)
    confirmed: bool = False
    # Times change no result.
    assigned_at_seconds: list[float] = field(compare=False)
    completion_seconds: float = field(compare=False)
    startup_seconds: float = field(compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """The state of a running experiment after an event; most names are those of `Experiment`.

    With the experiment's submission and preparation, replay begins here and needs no earlier entry.
    `tasks` are those of each open round. The tasks that have `arrived` are in order.
    """

    experiment: str
    version: int
    rounds_done: int
    tasks: list[list[DurableTask]]
    arrived: list[TaskKey]
    arrived_at_seconds: list[float] = field(compare=False)
    models: list[PublishedFile]
    outer: PublishedFile | None
    since_outer: list[tuple[out.Push, ...]] = field(default_factory=list)
    means: dict[str, PublishedFile] = field(default_factory=dict)
    optimizer_states: dict[int, PublishedFile]
    steps: dict[int, PublishedFile]
    own: dict[int, PublishedFile]
    evaluating: dict[int, PublishedFile]
    evaluated_versions: set[int]
    evaluated_round: int
    last_evaluation: Evaluation | None
    best: on.Best | None
    paused: bool = False
    priority: int = 0
    unaudited: dict[str, Unaudited] = field(default_factory=dict)
    quarantined: dict[str, out.Quarantined] = field(default_factory=dict)
    audits: bool = False


_OF_TASK = frozenset(each.name for each in fields(DurableTask)) - {"state", "offer"}
_OF_EXPERIMENT = frozenset(each.name for each in fields(Checkpoint)) - {
    *("experiment", "tasks", "arrived", "arrived_at_seconds")
}


EntryEvent = on.ExperimentSubmitted | on.Prepared | on.Aggregated | on.Evaluated | on.ModelPublished
EntryFact = (
    out.Assigned
    | out.Accepted
    | out.Withheld
    | out.Quarantined
    | out.Saved
    | out.Dropped
    | out.Resized
    | out.GivenUp
    | out.Rescheduled
    | out.Concluded
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


Journaled = Entry | out.Fact | Observed | TakenUp
"""The entries of a journal."""


def checkpoint(experiment: Experiment) -> Checkpoint:
    """Return the state from which replay can continue an experiment."""
    kept = _copied(experiment, _OF_EXPERIMENT)
    # The scheduler asks only about versions that it keeps.
    oldest = experiment.version - len(experiment.models)
    kept["evaluated_versions"] = {n for n in experiment.evaluated_versions if n > oldest}
    return Checkpoint(
        experiment=experiment.name,
        tasks=[[_projected(task) for task in current.tasks] for current in experiment.rounds],
        arrived=list(experiment.arrived),
        arrived_at_seconds=list(experiment.arrived.values()),
        **kept,
    )


def _projected(task: ShardTask) -> DurableTask:
    # The others matter to workers that a restarted scheduler does not know yet.
    offer = replace(task.offer, meant_for=None, home=None)
    return DurableTask(state=task.life.state, offer=offer, **_copied(task, _OF_TASK))


def _copied(source: object, names: Iterable[str]) -> dict[str, Any]:
    values = ((name, getattr(source, name)) for name in names)
    return {name: copy(v) if isinstance(v, list | dict | set) else v for name, v in values}


def must_last(state: SchedulerState, entry: Journaled) -> bool:
    """Whether an entry must be durable before anything follows from it.

    Entries that do not affect results need not be durable; the manager syncs them with the next
    entry that does. An assignment need not be durable if another one would ask for the same work.
    If it is lost, that costs a second attempt at the shard, and changes no result. So the workers
    of a round need not wait for the disk. But an assignment may decide the shard's start version,
    or the share to train. Then a lost one matters: the update of its attempt would count for
    another attempt with the same number.
    """
    if not isinstance(entry, out.Assigned):
        return isinstance(entry, Entry)
    experiment = state.experiments.get(entry.experiment)
    if experiment is None:
        return False
    spec = experiment.spec
    return not spec.in_step or state.policies[spec.policy].shortens


_OUTSIDE_ROUNDS = ("reason", "dataset", "frozen", "trial", "shard_samples", "tested", "result")


def durable(state: SchedulerState) -> tuple[tuple[Any, ...], ...]:
    """Return the state that a restart must preserve, in the order of submission."""
    # We leave out workers, timeouts and speeds: the scheduler relearns them, and they change no
    # result. A preparation ends with its manager.
    before = {ExperimentState.PREPARING: ExperimentState.WAITING}
    return tuple(
        (
            before.get(each.life.state, each.life.state),
            _copied(each, _OUTSIDE_ROUNDS),
            checkpoint(each),
        )
        for each in state.experiments.values()
    )


def apply(state: SchedulerState, at_seconds: float, entry: EntryFact | Checkpoint) -> None:  # noqa: C901 - one arm a fact
    """Take in a journaled fact, or a checkpoint."""
    match entry:
        case out.Assigned():
            # We add no worker here: `Scheduler.resume` adds the ones that still hold an attempt.
            current = _round_of(state, entry.attempt)
            experiment = state.experiments[entry.experiment]
            experiment.assign(current, entry.attempt.shard, entry.worker, at_seconds, entry.share)
        case out.Accepted():
            _accept(state, at_seconds, entry)
        case out.Withheld():
            _round_of(state, entry.attempt).withhold(entry)
        case out.Quarantined():
            audits.quarantine(state, entry)
        case out.Saved():
            _round_of(state, entry.attempt).save(entry.attempt, entry.snapshot)
        case out.Dropped():
            _current(state, entry.experiment, entry.round).drop(entry.shards)
        case out.Resized():
            _current(state, entry.experiment, entry.round).resize(entry.samples)
        case out.GivenUp():
            _give_up(state, entry)
        case out.Rescheduled():
            _reschedule(state, entry)
        case out.Concluded():
            _conclude(state, entry)
        case Checkpoint():
            _go_to(state, entry, at_seconds)
        case _:
            assert_never(entry)


def take_up(state: SchedulerState, experiments: Iterable[Experiment]) -> None:
    """Take in experiments that were replayed separately, in the order of their submission."""
    for each in experiments:
        state.experiments[each.name] = each
        state.quarantined |= each.quarantined
        if each.life.state is ExperimentState.RUNNING:
            state.open.append(each)
        elif each.life.state is ExperimentState.PREPARING:
            # In its separate replay it came first in the queue, but among others it may not.
            each.life.step("set-aside")


def _accept(state: SchedulerState, at_seconds: float, entry: out.Accepted) -> None:
    current, experiment = _round_of(state, entry.attempt), state.experiments[entry.experiment]
    experiment.audits &= repeats(current.tasks[entry.attempt.shard].withheld)
    current.publish(entry, at_seconds)
    experiment.arrive(entry, at_seconds)
    if entry.confirmed_by:
        queue.spent_models(experiment)


def _give_up(state: SchedulerState, entry: out.GivenUp) -> None:
    current = _round_of(state, entry.attempt)
    failure = Failure(entry.failure, entry.reason)
    # Only a published task can have its update refused; all other attempts were running.
    if current.tasks[entry.attempt.shard].life.state is TaskState.PUBLISHED:
        experiment, task = state.experiments[entry.experiment], current.tasks[entry.attempt.shard]
        updates.refuse(state, TaskContext(experiment, current, task), failure)
    else:
        updates.take_back(state, current, entry.attempt.shard, entry.worker, failure)
    context = state.find(entry.attempt)
    # If the manager crashed in between, the conclusion that followed may be missing in the journal.
    if context is not None:
        updates.fail_if_hopeless(state, context, entry.reason)


def _reschedule(state: SchedulerState, entry: out.Rescheduled) -> None:
    experiment = state.experiments[entry.experiment]
    match entry.change:
        case "set aside":
            queue.set_aside(state, experiment)
        case "prioritized":
            experiment.priority = entry.priority
        case "begun beside":
            if experiment.life.state is ExperimentState.WAITING:
                queue.activate(state, experiment)
        case "paused" | "continued":
            experiment.paused = entry.change == "paused"
            queue.activate_next(state)
        case _:
            assert_never(entry.change)


def _conclude(state: SchedulerState, entry: out.Concluded) -> None:
    experiment = state.experiments[entry.experiment]
    # An experiment that finished or failed has done so by an earlier entry. Then only its reason
    # is new, because that may depend on workers.
    experiment.reason = entry.reason
    if experiment.life.may("cancel"):
        experiment.asked_wrongly = entry.asked_wrongly
        cancelled = entry.ending is ExperimentState.CANCELLED
        experiment.life.step("cancel" if cancelled else "fail")
        queue.conclude(state, experiment, entry.ending, entry.reason, entry.back_to)


def _go_to(state: SchedulerState, entry: Checkpoint, at_seconds: float) -> None:
    experiment = state.experiments[entry.experiment]
    for name, value in _copied(entry, _OF_EXPERIMENT).items():
        setattr(experiment, name, value)
    experiment.version_at_seconds = at_seconds
    experiment.arrived = dict(zip(entry.arrived, entry.arrived_at_seconds, strict=True))
    experiment.rounds = []
    for tasks in entry.tasks:
        experiment.start_round()
        current = experiment.rounds[-1]
        sizes = tuple(task.samples for task in tasks)
        if sizes != experiment.shard_samples:
            current.resize(sizes)
        for task, kept in zip(current.tasks, tasks, strict=True):
            task.life.state, task.offer = kept.state, kept.offer
            for name, value in _copied(kept, _OF_TASK).items():
                setattr(task, name, value)
        current.recount()
        for task in current.tasks:
            if task.shard not in current.held_back and updates.wait_seconds(task.failed) > 0:
                updates.let_wait(state, current, task.shard)
        current.last_update_at_seconds = at_seconds


def _round_of(state: SchedulerState, attempt: AttemptId) -> Round:
    return _current(state, attempt.experiment, attempt.round)


def _current(state: SchedulerState, experiment: str, number: int) -> Round:
    """Return the open round of this number; entries out of order raise ValueError."""
    current = state.experiments[experiment].round_of(number)
    if current is None:
        raise ValueError(f"round {number} of {experiment} has not begun, or is over")
    return current
