"""Recomputes workers' contributions only from time to time, because clients ask often."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice

from downpour.core.scheduler.contributing import contributions
from downpour.core.scheduler.state import SchedulerState
from downpour.core.stragglers import Saving

TOLD_MAX = 40
"""A screenful, as many as `downpour status` shows."""
_AGAIN_SECONDS = 2.0


class KnownContributions:
    """The last known contribution of each worker; used in the driver's thread.

    If there is no new contribution, as between two rounds or in the first steps of a task, the last
    one stays. We drop it when another experiment becomes active or the number of workers changes.
    """

    def __init__(self) -> None:
        self._of: tuple[str, int] = ("", 0)
        self._known: Mapping[str, Saving] = {}
        self._again_at_seconds = 0.0

    def of(self, state: SchedulerState) -> Mapping[str, Saving]:
        """Return the first workers' contributions to the active experiment, by name."""
        now, of = state.now_seconds, (state.active.name if state.active else "", len(state.workers))
        if of != self._of:
            self._of, self._known, self._again_at_seconds = of, {}, now
        if now >= self._again_at_seconds:
            self._again_at_seconds = now + _AGAIN_SECONDS
            first = list(islice(state.workers.names, TOLD_MAX))
            self._known = {**self._known, **contributions(state, first)}
        return self._known
