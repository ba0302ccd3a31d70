"""Tells from a status whether an experiment waits for something that may never come."""

from __future__ import annotations

from downpour.base.states import ExperimentEvent, ExperimentState, TaskState
from downpour.network.rpc.messages import Status

WAITING_SECONDS = 60.0
"""How long nothing may happen before we tell the user; restarts take less time."""


class WaitingWatch:
    """Reports once, each time that an experiment, or its manager, has waited for too long."""

    def __init__(self, seconds: float = WAITING_SECONDS) -> None:
        self._seconds = seconds
        self._since: float | None = None
        self._is_told = False

    def take(self, status: Status, now_seconds: float) -> ExperimentEvent | None:
        """Return an event if this status, at this time, makes the wait too long."""
        why = why_waiting(status)
        if not why:
            self._since, self._is_told = None, False
            return None
        if self._since is None:
            self._since = now_seconds
        if self._is_told or now_seconds - self._since < self._seconds:
            return None
        self._is_told = True
        reason, shown = f"{why}, for {now_seconds - self._since:.0f} s", status.experiment
        if shown is None or shown.state.ended:
            return ExperimentEvent(kind="waiting", reason=reason)
        return ExperimentEvent(
            kind="waiting",
            experiment=shown.experiment,
            name=shown.name,
            state=shown.state,
            reason=reason,
        )


def why_waiting(status: Status) -> str:
    """Say what the experiment waits for; empty while work is in progress."""
    shown = status.experiment
    if shown is None or shown.state.ended:
        return "nothing to do"
    waits = any(task.state is TaskState.PENDING for task in status.tasks)
    trains = any(task.state is TaskState.RUNNING for task in status.tasks)
    if shown.state is not ExperimentState.RUNNING or not waits or trains:
        return ""
    if shown.reason:  # its folder is gone, or no worker fits
        return shown.reason
    if not status.workers:
        return "no worker is there"
    return "no worker has taken a task"
