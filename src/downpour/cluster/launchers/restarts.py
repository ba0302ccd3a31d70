"""Decides how often, and after which pauses, to restart a process that dies."""

from __future__ import annotations

from collections.abc import Callable

PAUSES_SECONDS = (0.0, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0)
"""The pauses before a worker's restarts: a rebooting host is back within minutes."""
LASTING_SECONDS = 60.0
"""A process that has run for this long counts as sound: we count its next restart as the first."""


class Restarts:
    """The restarts of one process; `count` is their number since it last ran for long.

    Args:
        now: returns seconds since some fixed moment.
    """

    def __init__(self, now: Callable[[], float]) -> None:
        self.count = 0
        self._now = now
        self._began_seconds = now()
        self._due_seconds: float | None = None

    def is_due(self) -> bool:
        """Whether it is time to restart the ended process."""
        if self._due_seconds is None:
            if self._now() - self._began_seconds >= LASTING_SECONDS:
                self.count = 0
            pause = PAUSES_SECONDS[min(self.count, len(PAUSES_SECONDS) - 1)]
            self._due_seconds = self._now() + pause
        return self._due_seconds <= self._now()

    def begin(self) -> None:
        """Note a restart of the process."""
        self.count += 1
        self._began_seconds, self._due_seconds = self._now(), None
