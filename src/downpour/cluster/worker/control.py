"""One attempt, as the threads around its training see it."""

from __future__ import annotations

import time
from dataclasses import dataclass

from downpour.base.values import Snapshot
from downpour.core.node.attempt import HeldAttempt


class TaskCancelled(Exception):
    """The attempt is no longer wanted; not an error of the task."""


class HandOverStop(Exception):
    """The attempt has stopped for a hand-over; another worker continues its snapshot."""

    def __init__(self, snapshot: Snapshot) -> None:
        super().__init__(snapshot)
        self.snapshot = snapshot


@dataclass(slots=True, eq=False)
class TaskControl(HeldAttempt):
    """An attempt with a clock; `patience` scales how long its files may be missing."""

    patience: float = 1.0

    def begin(self, steps_done: int, steps_total: int) -> None:
        """Note that the attempt has loaded everything, and at which step its work begins."""
        self.loaded(steps_done, steps_total, time.monotonic())

    def advance(self, steps_done: int) -> None:
        """Note that a step has ended."""
        self.stepped(steps_done, time.monotonic())

    def raise_if_cancelled(self) -> None:
        """Raise TaskCancelled if the attempt is no longer wanted."""
        if self.cancelled:
            raise TaskCancelled
