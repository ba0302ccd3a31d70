"""Makes the view of a round from which a policy decides."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from downpour.base.values import AttemptId
from downpour.core.scheduler import placing
from downpour.core.scheduler.experiment import Experiment
from downpour.core.scheduler.round import Round
from downpour.core.scheduler.shard_task import ShardTask
from downpour.core.scheduler.state import SchedulerState
from downpour.core.scheduler.workers import Worker
from downpour.core.stragglers import Policy, RoundView, RunningTask, Speed, WorkerHistory


def view_of(
    state: SchedulerState,
    experiment: Experiment,
    current: Round,
    policy: Policy,
    *,
    between: bool = False,
) -> RoundView:
    """Return a view of the current round; a policy that doesn't watch sees only the basic part.

    The rest takes time for every worker and running task, at every event that asks the policy. So
    `between` two decisions, a policy that watches sees only the basic part and the tasks in a
    hand-over.
    """
    workers, spec = state.workers, experiment.spec
    enough = len(current.tasks) if spec.shard_needs else current.enough_for(workers.idle)
    basic = RoundView(
        round=current.number,
        at_seconds=state.now_seconds,
        pending=current.pending(enough),
        idle=placing.by_preference(state, experiment),
        workers=workers.able,
        shards=len(current.tasks),
        begun=current.begun,
        standbys=spec.standbys,
        barred=placing.barred(state, experiment),
    )
    if not policy.watches:
        return basic
    if between:
        leaving = (task for task in current.tasks if task.leaving)
        running = _running(state, leaving, experiment.startup_limit_seconds)
        return replace(basic, running=tuple(running))
    return replace(
        basic,
        running=tuple(_running(state, current.tasks, experiment.startup_limit_seconds)),
        published=tuple(_published(current)),
        paces={worker.name: worker.pace for worker in workers if worker.pace is not None},
        speeds=_speeds(state),
        elapsed_seconds=state.now_seconds - (current.started_at_seconds or state.now_seconds),
        # This round's overhead counts only while no earlier round has one, because a median over
        # all shards says more.
        overhead_seconds=experiment.overhead_seconds or current.overhead_seconds,
        requested=max(0, state.wanted_workers - state.joined_since),
        history={w.name: WorkerHistory(slowness=tuple(w.slowness)) for w in workers if w.slowness},
        options={**policy.options, **spec.policy_options},
    )


def _speeds(state: SchedulerState) -> dict[str, Speed]:
    speeds = ((worker.name, worker.speed(state.now_seconds)) for worker in state.workers)
    return {name: speed for name, speed in speeds if speed is not None}


def _running(
    state: SchedulerState, tasks: Iterable[ShardTask], startup_limit_seconds: float
) -> Iterator[RunningTask]:
    for task in tasks:
        for name, attempt in task.held_by.items():
            worker = state.workers.get(name)
            if worker is not None:
                startup = _startup_seconds(state, worker, startup_limit_seconds)
                yield _as_running(state, task, worker, attempt, startup)


def _startup_seconds(state: SchedulerState, worker: Worker, limit_seconds: float) -> float:
    """Return how many of the seconds since its assignment a worker has spent on starting."""
    if worker.is_starting:
        return min(state.now_seconds - worker.assigned_at_seconds, limit_seconds)
    return worker.startup_seconds


def _as_running(
    state: SchedulerState,
    task: ShardTask,
    worker: Worker,
    attempt: AttemptId,
    startup_seconds: float,
) -> RunningTask:
    # We look this up by attempt, because copies of a shard may continue from different snapshots.
    began = task.began_at[attempt.attempt]
    progress, now = worker.progress, state.now_seconds
    started = worker.assigned_at_seconds + startup_seconds
    meant_for, since = task.leaving.get(worker.name, (None, now))
    return RunningTask(
        shard=task.shard,
        samples=task.offer.samples,
        worker=worker.name,
        elapsed_seconds=now - task.assigned_at_seconds[attempt.attempt] - startup_seconds,
        began_at=began,
        done=max(began, progress.share) if progress is not None else began,  # 0 while it loads
        reported_seconds=now - worker.mentioned_at_seconds,
        remaining=worker.remaining,
        saved=task.offer.saved,
        copies=len(task.held_by),
        attempt=attempt.attempt,
        still_seconds=now - max(worker.advanced_at_seconds, started),
        meant_for=meant_for,
        leaving_seconds=now - since,
        is_starting=worker.is_starting and now <= started,
    )


def _published(current: Round) -> Iterator[tuple[int, float]]:
    for task in current.tasks:
        if task.update is not None:
            yield task.offer.samples, task.working_seconds
