"""Which workers are present: they join, send heartbeats, fall silent, stand still and leave."""

from __future__ import annotations

from downpour.base.states import FailureKind
from downpour.base.values import AttemptId
from downpour.core.scheduler import commands as do
from downpour.core.scheduler import events as on
from downpour.core.scheduler import facts, updates
from downpour.core.scheduler.state import SchedulerState
from downpour.core.scheduler.timeouts import heartbeat_interval
from downpour.core.scheduler.workers import Worker

# Because each forecast is a line of the record: one a second would be most of it.
_QUARTERS = 4


def joined(state: SchedulerState, event: on.WorkerJoined) -> None:
    """Add a worker; one that still runs the attempt that it was given goes on with it.

    Otherwise a former registration under this name gives up its attempt. A worker that runs another
    attempt gets no work before that has ended.
    """
    _join(state, event.worker, event.running)
    worker = state.workers.get(event.worker)
    if worker is not None:
        worker.labels = event.labels


def _join(state: SchedulerState, name: str, running: AttemptId | None) -> None:
    known = state.workers.heard(name, state.now_seconds)
    if known is not None and _goes_on(state, known, running):
        return
    # Also without a heartbeat lost: a process that was restarted at once has lost its attempt.
    former = state.workers.remove(name)
    if former is not None and former.running is not None:
        updates.give_up(state, name, former.running, FailureKind.LOST, f"{name} registered anew")
    state.workers.join(name, state.now_seconds)
    if former is None:
        state.log(f"{name} joined")
    # Any new worker answers a policy's request for one more.
    if state.joined_since < state.wanted_workers:
        state.joined_since += 1
    # A task beside an attempt that it was not asked for here would be slow, and its speed would be
    # learned wrongly.
    if running is not None:
        state.workers.stick(name)


def _goes_on(state: SchedulerState, known: Worker, running: AttemptId | None) -> bool:
    """Have a worker that registers go on with its attempt; returns whether it does.

    An awaited worker that comes back without its attempt is asked for it again. It may have been
    restarted, or the call of the earlier manager may not have reached it.
    """
    now, has_it = state.now_seconds, known.running == running
    if known.is_awaited:
        state.workers.resume(known.name, now, empty_handed=not has_it)
        return True
    if running is None or not has_it:
        return False
    # Registering mentions the attempt as a heartbeat does, so its timeout restarts.
    known.mentioned_at_seconds = now
    return True


def gone(
    state: SchedulerState, name: str, failure: FailureKind, reason: str, *, lost: bool
) -> None:
    """Remove a worker; its attempt is given up."""
    # A worker may be lost and say goodbye, or be found lost by several calls: the first counts.
    worker = state.workers.remove(name)
    if worker is None:
        return
    state.note(facts.Dismissed(cause=state.cause, worker=name, reason=reason, lost=lost))
    state.do(do.Dismiss(worker=name))
    state.log(f"{name} {'is lost' if lost else 'left'}: {reason}")
    if worker.running is not None:
        updates.give_up(state, name, worker.running, failure, reason)


def heartbeat(state: SchedulerState, event: on.HeartbeatReceived) -> None:
    """Note that a worker lives, and how far its attempt has come."""
    worker = state.workers.get(event.worker)
    if worker is None or (worker.is_awaited and not _mentions(event, worker.running)):
        return  # the answer tells it to register, which says what it runs
    worker.beat(state.now_seconds)
    worker.interval_seconds = heartbeat_interval(len(state.workers))
    worker.system = event.system
    # A stuck worker is free only when it reports nothing, and not after an order to stop: it may
    # hang in a step for long.
    if not event.running:
        state.workers.unstick(worker.name)
    # There may be two: the attempt that it is stopping, and the one that it was asked for since.
    for progress in event.running:
        if progress.attempt == worker.running:
            # Before `mention`, which replaces the progress that tells a new snapshot from the last.
            updates.save(state, worker, progress)
            worker.mention(progress, state.now_seconds)
            return
        if progress.attempt == worker.lingering:
            updates.remove_needless(state, worker, progress)
    _doubt(state, worker, elsewhere=bool(event.running))


def _doubt(state: SchedulerState, worker: Worker, *, elsewhere: bool) -> None:
    """Take back an attempt that its worker has not mentioned for too long."""
    attempt = worker.running
    silent = state.now_seconds - worker.mentioned_at_seconds
    if attempt is None or silent < _within(state, worker.mention_limit_seconds):
        return
    what = "has not begun it after" if worker.progress is None else "has not mentioned it for"
    # A worker that reports no other attempt is idle; one that does is stuck in that.
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
    # So an attempt that continues from the middle has as many records.
    began = context.task.began_at[attempt.attempt]
    own = (worker.progress.share - began) / (1 - began) if began < 1 else 0.0
    quarters = min(int(_QUARTERS * own), _QUARTERS - 1)
    if worker.quarters_recorded < quarters:
        worker.quarters_recorded = quarters
        state.record_forecast(worker)


def tick(state: SchedulerState) -> None:
    """Check the timeouts: of workers' heartbeats, and of the steps of attempts."""
    for worker in list(state.workers):
        silent = state.now_seconds - worker.seen_at_seconds
        if silent > _within(state, worker.silence_limit_seconds):
            # The earlier manager's death is to blame where an awaited worker does not come back,
            # and not its task: that costs no retry.
            kind = FailureKind.CANCELLED if worker.is_awaited else FailureKind.LOST
            gone(state, worker.name, kind, f"no heartbeat for {silent:.0f} s", lost=True)
        elif worker.running is not None:
            _check_progress(state, worker, worker.running)


def _check_progress(state: SchedulerState, worker: Worker, attempt: AttemptId) -> None:
    """Take back an attempt that makes no step, although its worker sends heartbeats."""
    experiment = state.active_as(attempt.experiment)
    pause = state.now_seconds - worker.advanced_at_seconds
    if experiment is not None and pause > _within(state, experiment.progress_timeout.seconds):
        state.cancel_call(worker, attempt, "it makes no step")
        _take_back(state, worker, attempt, f"has made no step for {pause:.0f} s", free=False)


def _take_back(
    state: SchedulerState, worker: Worker, attempt: AttemptId, what: str, *, free: bool
) -> None:
    """Take an attempt from its worker, which is idle if `free`, and stuck otherwise."""
    if free:
        state.workers.release(worker.name, attempt)
    else:
        state.workers.stick(worker.name)
    updates.give_up(state, worker.name, attempt, FailureKind.LOST, f"{worker.name} {what}")


def _within(state: SchedulerState, seconds: float) -> float:
    return seconds * state.options.patience


def _mentions(event: on.HeartbeatReceived, attempt: AttemptId | None) -> bool:
    return any(progress.attempt == attempt for progress in event.running)
