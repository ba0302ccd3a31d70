"""Invariants that hold for a scheduler's state after every event.

Tests and simulations call `check_invariants` after each `handle`. It changes nothing, and takes
time in proportion to the workers and to the tasks of the open rounds. Other tests check the
properties of facts and commands: an update counts once, no experiment ends twice.
"""

from collections.abc import Iterator

from downpour.base.states import ExperimentState, TaskState, WorkerState
from downpour.core.scheduler.experiment import EVALUATIONS_AHEAD, Experiment
from downpour.core.scheduler.queue import WHOLE_EVERY, SchedulerState, waiting
from downpour.core.scheduler.round import Round, ShardTask
from downpour.core.scheduler.round_view import left_idle

_OPEN = {ExperimentState.PREPARING, ExperimentState.RUNNING}
_BEFORE = {ExperimentState.WAITING, ExperimentState.PREPARING}
_HOLDING = {WorkerState.BUSY, WorkerState.AWAITED}


def check_invariants(core: SchedulerState) -> None:
    """Raise AssertionError with a sentence for the first invariant that does not hold."""
    for sentence in violations(core):
        raise AssertionError(f"after event {core.cause}: {sentence}")


def violations(core: SchedulerState) -> Iterator[str]:
    """Yield a sentence for each invariant that does not hold."""
    yield from _in_turn(core)
    yield from _workers(core)
    for experiment in core.experiments.values():
        yield from _experiment(experiment)
        for current in experiment.rounds:
            yield from _round(experiment, current)
        for task in experiment.open_tasks():
            yield from _task(core, experiment, task)
        yield from _arrived(core, experiment)


def _in_turn(core: SchedulerState) -> Iterator[str]:
    opened = [e for e in core.experiments.values() if e.life.state in _OPEN]
    if {e.name for e in opened} != {e.name for e in core.open} or len(opened) != len(core.open):
        names = ", ".join(e.name for e in opened) or "none"
        yield f"open should be {[e.name for e in core.open]}, but open are {names}"
    if not core.open and not all(e.paused for e in waiting(core)):
        yield "an experiment waits although none is open"


def _workers(core: SchedulerState) -> Iterator[str]:
    idle = core.workers.idle
    states = {worker.name: worker.life.state for worker in core.workers}
    if sorted(idle) != sorted(name for name, state in states.items() if state is WorkerState.IDLE):
        yield f"the idle list {tuple(idle)} does not agree with the workers' states {states}"
    for experiment in core.open:
        if experiment.ready and not experiment.paused and (wrong := left_idle(core, experiment)):
            yield wrong
    for worker in core.workers:
        if (worker.running is not None) != (worker.life.state in _HOLDING):
            yield f"{worker.name} is {worker.life.state} with {worker.running}"
        if worker.running is None:
            continue
        context = core.find(worker.running)
        task = context.task if context is not None else None
        if task is None or task.life.state is not TaskState.RUNNING:
            yield f"{worker.name} is busy with {worker.running}, which no round waits for"
        elif task.held_by.get(worker.name) != worker.running:
            yield f"{worker.name} is busy with a task that is held by {list(task.held_by)}"


def _experiment(experiment: Experiment) -> Iterator[str]:
    who, state = f"experiment {experiment.name}", experiment.life.state
    is_aside = state in _BEFORE and experiment.dataset is not None and not experiment.evaluating
    if state is not ExperimentState.RUNNING and _goes_on(experiment) and not is_aside:
        yield f"{who} is {state}, but something of it goes on"
    if state is ExperimentState.RUNNING and not experiment.models:
        yield f"{who} runs without a model"
    if state.ended and not experiment.reason:
        yield f"{who} has {state} and does not say why"
    if experiment.rounds_done > experiment.spec.rounds:
        yield f"{who} has done {experiment.rounds_done} of {experiment.spec.rounds} rounds"
    # An open round needs an evaluation later. So if a mode opens several rounds, all of them count.
    begun, ahead = len(experiment.evaluating) + len(experiment.rounds), experiment.mode.ahead
    if ahead is not None and begun > EVALUATIONS_AHEAD + 1 + ahead:
        yield f"{who} runs ahead of its evaluations {sorted(experiment.evaluating)}"
    kept = _most_models(experiment)
    if len(experiment.models) > kept:
        yield f"{who} holds {len(experiment.models)} models, more than {kept}"
    if not all(file in experiment.models for file in experiment.evaluating.values()):
        yield f"{who} evaluates a model that it no longer holds"
    best = experiment.kept_best if experiment.result is None else None
    if best is not None and best not in experiment.models:
        yield f"{who} has let its best model go"
    yield from _outcome(experiment, who, state)


def _most_models(experiment: Experiment) -> int:
    newest = experiment.kept_newest
    best = experiment.kept_best is not None and experiment.result is None
    unaudited = experiment.unaudited.values() if experiment.spec.stop_if_wrong else ()
    if not experiment.spec.publishes_steps:
        kept = {each.before.name for each in unaudited}
        bases = {file.name for file in (*experiment.bases(), *experiment.means.values())}
        return newest + best + len(experiment.evaluating) + len(bases | kept)
    # It holds all versions from the oldest needed one on, and those whose steps lead to it.
    tasks = (task for task in experiment.open_tasks() if task.base is not None and not task.is_over)
    evaluated = (number + 1 for number in experiment.evaluating)
    oldest = min([experiment.version - newest + 1, *evaluated, *(t.base_version for t in tasks)])
    oldest = min([oldest, *(each.version for each in unaudited)])
    return experiment.version - oldest + WHOLE_EVERY + best


def _goes_on(experiment: Experiment) -> bool:
    return bool(experiment.rounds or experiment.evaluating or experiment.testing)


def _outcome(experiment: Experiment, who: str, state: ExperimentState) -> Iterator[str]:
    outstanding = _goes_on(experiment)
    if state is ExperimentState.RUNNING and not (outstanding or experiment.publishing):
        yield f"{who} stands still and waits for nothing"
    if state is ExperimentState.RUNNING and experiment.may_start_round and experiment.has_room:
        yield f"{who} may go on and does not"
    if experiment.publishing and (outstanding or not experiment.training_is_done):
        yield f"{who} publishes a model, but something of it goes on"
    if (experiment.result is not None) != (state is ExperimentState.FINISHED):
        yield f"{who} is {state}, and its result is {experiment.result}"


def _round(experiment: Experiment, current: Round) -> Iterator[str]:
    who = f"round {current.number} of {current.experiment}"
    states = [task.life.state for task in current.tasks]
    if current.experiment != experiment.name or experiment.round_of(current.number) is not current:
        yield f"{who} is not the next of {experiment.name} after {experiment.rounds_done}"
    if current.applied != states.count(TaskState.APPLIED) or current.is_over:
        yield f"{who} counts {current.applied} applied, its tasks say {states}"
    if current.published != states.count(TaskState.PUBLISHED) + current.applied:
        yield f"{who} counts {current.published} published, its tasks say {states}"
    offered = [offer.shard for offer in current.pending(len(states))]
    pending = [shard for shard, state in enumerate(states) if state is TaskState.PENDING]
    kept_back = current.waiting | current.held_back
    if offered != [shard for shard in pending if shard not in kept_back]:
        yield f"{who} offers the shards {offered}, its tasks say {states}"
    if not current.waiting <= set(pending):
        yield f"{who} lets the shards {sorted(current.waiting)} wait, its tasks say {states}"
    if current.any_pending != bool(offered):
        yield f"{who} does not know whether a task is pending"
    running = [shard for shard, state in enumerate(states) if state is TaskState.RUNNING]
    if [task.shard for task in current.held] != running:
        yield f"{who} holds {[task.shard for task in current.held]}, its tasks say {states}"
    former = experiment.round_of(current.number - 1)
    waits = {task.shard for task in former.tasks if not task.is_over} if former else set()
    if experiment.mode.overlaps and former is not None:
        # A task whose update was refused later may have let its shard continue before.
        waits = {shard for shard in waits & set(pending) if former.tasks[shard].update is None}
    if current.held_back != waits:
        yield f"{who} holds the shards {current.held_back} back, and not {waits}"


def _arrived(core: SchedulerState, experiment: Experiment) -> Iterator[str]:
    who = f"experiment {experiment.name}"
    published = {
        (current.number, task.shard)
        for current in experiment.rounds
        for task in current.tasks
        if task.life.state is TaskState.PUBLISHED
    }
    if published != experiment.arrived.keys():
        yield f"{who} says that {[*experiment.arrived]} have arrived, its tasks say {published}"
    if not published.issuperset(experiment.applying):
        yield f"{who} applies {experiment.applying}, which it does not have"
    running = experiment.ready and experiment.life.state is ExperimentState.RUNNING
    if running and experiment.due(core.now_seconds) and not experiment.applying:
        yield f"{who} is complete, but not treated so"
    for current in experiment.rounds:
        if running and experiment.has_enough(current) and not current.complete:
            yield f"{who} has enough updates, and goes on with round {current.number}"
    ahead = experiment.mode.ahead
    if ahead is not None and len(experiment.rounds) > ahead + 1:
        yield f"{who} has {len(experiment.rounds)} open rounds, more than {ahead + 1}"


def _task(core: SchedulerState, experiment: Experiment, task: ShardTask) -> Iterator[str]:
    who, state = task.life.who, task.life.state
    has = {task.worker is not None, task.attempt is not None, task.update is not None}
    if has != {state in {TaskState.PUBLISHED, TaskState.APPLIED}}:
        yield f"{who} is {state} with {task.worker}, {task.attempt}, {task.update}"
    if bool(task.held_by) != (state is TaskState.RUNNING):
        yield f"{who} is {state}, held by {list(task.held_by)}"
    if task.snapshot is not None and state is TaskState.PUBLISHED:
        yield f"{who} is {state} and keeps a snapshot"
    if task.failures > experiment.spec.retries:
        yield f"{who} has failed {task.failures} times, and the experiment goes on"
    if len(task.offer.failed_on) != len(task.failed):
        yield f"{who} has failed {len(task.failed)} times, but on {task.offer.failed_on}"
    for name, attempt in task.held_by.items():
        worker = core.workers.get(name)
        if worker is None or worker.running != attempt:
            yield f"{who} should run on {name}, which does not run it"
