"""Decides when to ask a policy: about as often as tasks make steps, less often in a crowd."""

from __future__ import annotations

from downpour.core.scheduler import events as on
from downpour.core.scheduler.state import SchedulerState
from downpour.core.stragglers import RoundView
from downpour.core.stragglers.outlook import Outlook

# Events that change no task and no worker. Most events are heartbeats, and a decision costs far
# more than handling a heartbeat.
_QUIET = on.HeartbeatReceived, on.Forecasts, on.Evaluated
_LOOKS_A_TASK = 20
_BETWEEN_LOOKS_SECONDS = 0.1, 0.5
# Measured: a decision takes about 25 microseconds for each running task. So these decisions use
# half a percent of a core.
_BETWEEN_LOOKS_SECONDS_A_TASK = 0.005
# Above this many running tasks, we don't decide after each event, because the cost grew with the
# square of their number. A round of 500 workers took 68 s of processor time; with this limit, it
# takes 15 s.
_CROWD = 64
_CROWDED_SECONDS_A_TASK = 0.0005


def may_have_news(state: SchedulerState, event: on.Event | None, *, waiting: bool) -> bool:
    """Whether an event may change the decision of a policy that watches.

    `waiting` says that a task is pending and a worker idle. These two need not fit: a task in a
    hand-over waits for a certain worker.
    """
    if is_crowded(state):
        return waiting and not isinstance(event, on.HeartbeatReceived)
    if waiting:
        return True
    if isinstance(event, on.HeartbeatReceived) and event.running:
        return state.now_seconds >= state.look_again_at_seconds
    return not isinstance(event, _QUIET)


def is_crowded(state: SchedulerState) -> bool:
    """Whether many tasks run, and the policy looked at them too recently to look again."""
    return state.now_seconds < state.crowded_until_seconds


def between_looks(view: RoundView) -> float:
    """Return the seconds until heartbeats lead to a decision again; fewer if tasks are short."""
    shortest, longest = _BETWEEN_LOOKS_SECONDS
    usual = Outlook(view).typical_seconds or 0.0
    affordable = _BETWEEN_LOOKS_SECONDS_A_TASK * len(view.running)
    return min(longest, max(shortest, affordable, usual / _LOOKS_A_TASK))


def between_views(view: RoundView) -> float:
    """Return for how many seconds events lead to no decision; 0 if few tasks run."""
    tasks = len(view.running)
    return (
        min(_BETWEEN_LOOKS_SECONDS[1], _CROWDED_SECONDS_A_TASK * tasks) if tasks > _CROWD else 0.0
    )
