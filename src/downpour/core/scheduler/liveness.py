"""Tracks which workers are present: they join, send heartbeats, fall silent, stall and leave."""

from __future__ import annotations

from downpour.base.states import FailureKind
from downpour.base.values import AttemptId
from downpour.core.scheduler import commands as do
from downpour.core.scheduler import events as on
from downpour.core.scheduler import facts, updates
from downpour.core.scheduler.lifecycle import HEARTBEATS_A_SECOND
from downpour.core.scheduler.state import SchedulerState
from downpour.core.scheduler.workers import Worker

# Each forecast is a line of the record, and one per second would fill most of it.
_QUARTERS = 4


def joined(state: SchedulerState, event: on.WorkerJoined) -> None:
    """Add a worker; if it still runs the attempt that we assigned, it continues.

    Otherwise, we give up the attempt of a former registration under this name. A worker that runs
    another attempt gets no work before that attempt ends.
    """
    _join(state, event.worker, event.running)
    worker = state.workers.get(event.worker)
    if worker is not None:
        worker.labels = event.labels


def _join(state: SchedulerState, name: str, running: AttemptId | None) -> None:
    known = state.workers.heard(name, state.now_seconds)
    if known is not None and _goes_on(state, known, running):
        return
    # We remove a former registration even if no heartbeat is missing, because a process that
    # restarted at once has lost its attempt.
    former = state.workers.remove(name)
    if former is not None and former.running is not None:
        updates.give_up(state, name, former.running, FailureKind.LOST, f"{name} registered anew")
    state.workers.join(name, state.now_seconds)
    if former is None:
        state.log(f"{name} joined")
    # Any new worker answers a policy's request for one more.
    if state.joined_since < state.wanted_workers:
        state.joined_since += 1
    # If it still runs an attempt, we did not assign that one. A task beside it would be slow, and
    # we would learn a wrong speed.
    if running is not None:
        state.workers.stick(name)


def _goes_on(state: SchedulerState, known: Worker, running: AttemptId | None) -> bool:
    """Let a worker that registers continue its attempt; return whether it does.

    If an awaited worker comes back without its attempt, we ask it for the attempt again. The worker
    may have restarted, or the earlier manager's call may not have reached it.
    """
    now, has_it = state.now_seconds, known.running == running
    if known.is_awaited:
        state.workers.resume(known.name, now, empty_handed=not has_it)
        return True
    if running is None or not has_it:
        return False
    # A registration mentions the attempt as a heartbeat does, so the attempt's timeout restarts.
    known.mentioned_at_seconds = now
    return True


def gone(
    state: SchedulerState, name: str, failure: FailureKind, reason: str, *, lost: bool
) -> None:
    """Remove a worker, and give up its attempt."""
    # A worker may be lost and say goodbye, or several calls may find it lost. The first report
    # counts.
    worker = state.workers.remove(name)
    if worker is None:
        return
    state.note(facts.Dismissed(worker=name, reason=reason, lost=lost))
    state.do(do.Dismiss(worker=name))
    state.log(f"{name} {'is lost' if lost else 'left'}: {reason}")
    if worker.running is not None:
        updates.give_up(state, name, worker.running, failure, reason)


def heartbeat(state: SchedulerState, event: on.HeartbeatReceived) -> None:
    """Note a worker's sign of life, and the progress of its attempt."""
    worker = state.workers.get(event.worker)
    attempts = [progress.attempt for progress in event.running]
    if worker is None or (worker.is_awaited and worker.running not in attempts):
        return  # the answer tells it to register; that call says what it runs
    worker.beat(state.now_seconds)
    worker.interval_seconds = len(state.workers) / HEARTBEATS_A_SECOND
    worker.system = event.system
    # A stuck worker is free only when it reports no attempt. An order to stop does not free it,
    # because it may hang in a step for a long time.
    if not event.running:
        state.workers.unstick(worker.name)
    # It may report two: the attempt that it is stopping, and the one that we have assigned since.
    for progress in event.running:
        new = progress.snapshot
        if progress.attempt == worker.running:
            seen = worker.progress.snapshot if worker.progress else None
            worker.mention(progress, state.now_seconds)
            # Every heartbeat mentions the last snapshot again.
            if new is not None and new != seen:
                updates.keep(state, worker.name, progress.attempt, new)
            return
        # The snapshot of an attempt that no longer counts.
        if progress.attempt == worker.lingering and new is not None and new != worker.needless:
            worker.needless = new
            state.discard(progress.attempt.experiment, (new.file,))
    _doubt(state, worker, elsewhere=bool(event.running))


def _doubt(state: SchedulerState, worker: Worker, *, elsewhere: bool) -> None:
    """Take back an attempt that its worker has not mentioned for too long."""
    attempt = worker.running
    silent = state.now_seconds - worker.mentioned_at_seconds
    if attempt is None or silent < _within(state, worker.mention_limit_seconds):
        return
    what = "has not begun it after" if worker.progress is None else "has not mentioned it for"
    # A worker that reports no other attempt is idle; otherwise it is stuck in the other one.
    _take_back(state, worker, attempt, f"{what} {silent:.0f} s", free=not elsewhere)


def forecasts(state: SchedulerState, event: on.Forecasts) -> None:
    """Note forecasts for workers and running attempts."""
    for name, pace in event.paces:
        worker = state.workers.get(name)
        if worker is not None:
            worker.pace = pace
    running = {worker.running: worker for worker in state.workers if worker.running}
    for attempt, remaining in event.remaining:
        if attempt in running:
            running[attempt].take_forecast(remaining)
            _record_each_quarter(state, running[attempt], attempt)


def _record_each_quarter(state: SchedulerState, worker: Worker, attempt: AttemptId) -> None:
    """Record a running attempt's forecast after each quarter of the attempt's work."""
    context = state.find(attempt)
    if context is None or worker.progress is None:
        return
    # We count quarters of the attempt's own work. So an attempt that continues from the middle gets
    # as many records.
    began = context.task.began_at[attempt.attempt]
    own = (worker.progress.share - began) / (1 - began) if began < 1 else 0.0
    quarters = int(_QUARTERS * own)
    if worker.quarters_recorded < quarters:
        worker.quarters_recorded = quarters
        state.record_forecast(worker)


def tick(state: SchedulerState) -> None:
    """Check the timeouts of workers' heartbeats and of attempts' steps."""
    for worker in list(state.workers):
        silent = state.now_seconds - worker.seen_at_seconds
        if silent > _within(state, worker.silence_limit_seconds):
            # If an awaited worker does not come back, the earlier manager's crash is to blame and
            # not the task. So this costs no retry.
            kind = FailureKind.CANCELLED if worker.is_awaited else FailureKind.LOST
            gone(state, worker.name, kind, f"no heartbeat for {silent:.0f} s", lost=True)
        elif worker.running is not None:
            _check_progress(state, worker, worker.running)


def _check_progress(state: SchedulerState, worker: Worker, attempt: AttemptId) -> None:
    """Take back an attempt that stands still although its worker sends heartbeats."""
    experiment = state.active_as(attempt.experiment)
    pause = state.now_seconds - worker.active_at_seconds
    if experiment is not None and pause > _within(state, experiment.progress_timeout.seconds):
        publishes = worker.progress is not None and worker.progress.phase == "publishing"
        what = f"has {'published nothing' if publishes else 'made no step'} for {pause:.0f} s"
        state.do(do.Cancel(worker=worker.name, attempt=attempt, reason=f"it {what}"))
        _take_back(state, worker, attempt, what, free=False)


def _take_back(
    state: SchedulerState, worker: Worker, attempt: AttemptId, what: str, *, free: bool
) -> None:
    """Take an attempt from its worker; the worker is then idle if `free`, and stuck otherwise."""
    if free:
        state.workers.release(worker.name, attempt)
    else:
        state.workers.stick(worker.name)
    updates.give_up(state, worker.name, attempt, FailureKind.LOST, f"{worker.name} {what}")


def _within(state: SchedulerState, seconds: float) -> float:
    return seconds * state.patience
