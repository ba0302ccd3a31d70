"""Decides when the updates of a round, or of some shards, become the next version."""

from __future__ import annotations

from downpour.core.scheduler import commands as do
from downpour.core.scheduler.experiment import Experiment
from downpour.core.scheduler.shard_task import TaskKey
from downpour.core.scheduler.state import SchedulerState, TaskContext
from downpour.core.scheduler.steps import is_whole


def aggregate_if_due(state: SchedulerState, experiment: Experiment) -> None:
    """Ask for the next model version if enough updates have arrived; never for two at once."""
    # A restarted manager cannot aggregate while it replays and prepares; `rounds` asks later.
    if state.replaying or not experiment.ready or state.active is not experiment:
        return
    if experiment.applying:
        return
    experiment.applying = experiment.due(state.now_seconds)
    if not experiment.applying:
        return
    state.do(
        do.Aggregate(
            experiment=experiment.name,
            round=experiment.version,
            model=experiment.model,
            whole=is_whole(experiment, experiment.version + 1),
            versions=tuple(experiment.models) if experiment.spec.publishes_steps else (),
            outer=experiment.outer,
            pushes=tuple(_push(experiment, key) for key in experiment.applying),
            in_step=experiment.spec.in_step,
            mixes=experiment.mode.mixes,
            elastic=experiment.mode.elastic,
            train_seconds=_train_seconds(state, experiment),
        )
    )


def gather(state: SchedulerState, context: TaskContext) -> None:
    """Ask the driver to sum an update that has just arrived, if its version waits for others.

    The driver sums it while workers train the other shards, so less work is left when the last
    update arrives. We skip updates of later rounds, because the model that they move does not exist
    yet.
    """
    experiment, current, task = context
    if state.replaying or not experiment.ready or not experiment.spec.in_step:
        return
    if experiment.round is not current or task.update is None or task.base is None:
        return
    if experiment.due(state.now_seconds) or experiment.has_enough(current):
        return
    state.do(
        do.Gather(
            experiment=experiment.name,
            round=experiment.version,
            shard=task.shard,
            update=task.update,
            model=experiment.model,
            base=task.base,
        )
    )


def _train_seconds(state: SchedulerState, experiment: Experiment) -> float:
    """Return the seconds from the oldest round's first assignment to its last update.

    If shards are rounds apart, versions follow each other faster than rounds. Then we count from
    the last version.
    """
    current = experiment.round
    began = current.started_at_seconds if current is not None else None
    if current is None or began is None:
        return 0.0
    if experiment.spec.in_step:
        return current.last_update_at_seconds - began
    since = experiment.version_at_seconds
    return state.now_seconds - (began if since is None else since)


def _push(experiment: Experiment, key: TaskKey) -> do.Push:
    current = experiment.round_of(key.round)
    task = current.tasks[key.shard] if current is not None else None
    if task is None or task.update is None or task.base is None:
        raise RuntimeError(f"{key} of {experiment.name} has no update")
    staleness = experiment.staleness(task)
    return do.Push(
        round=key.round,
        shard=key.shard,
        update=task.update,
        base=task.base,
        staleness=staleness,
        weight=experiment.mode.weight(staleness),
    )
