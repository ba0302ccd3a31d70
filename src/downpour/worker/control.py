"""One running attempt, as seen by the threads beside the training."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from threading import Event

from downpour.values import AttemptId, Progress


class TaskCancelled(Exception):
    """The attempt is no longer wanted; nobody's error."""


@dataclass(slots=True)
class TaskControl:
    """How far an attempt has come, and whether it is still wanted."""

    attempt: AttemptId
    cancelled: Event = field(default_factory=Event)
    steps_done: int = 0
    steps_total: int = 0
    began_at: float = field(default_factory=time.monotonic)

    def progress(self) -> Progress:
        """Say how far the attempt has come."""
        return Progress(
            attempt=self.attempt,
            steps_done=self.steps_done,
            steps_total=self.steps_total,
            elapsed_seconds=time.monotonic() - self.began_at,
        )

    def raise_if_cancelled(self) -> None:
        """Raise TaskCancelled where the attempt is no longer wanted."""
        if self.cancelled.is_set():
            raise TaskCancelled
