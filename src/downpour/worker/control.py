"""One running attempt, as seen by the threads beside the training."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from threading import Event

from downpour.values import AttemptId, Progress, Snapshot


class TaskCancelled(Exception):
    """The attempt is no longer wanted; nobody's error."""


class HandedOver(Exception):
    """The attempt has stopped where it was asked to; whoever has the snapshot goes on."""

    def __init__(self, snapshot: Snapshot) -> None:
        super().__init__(snapshot)
        self.snapshot = snapshot


@dataclass(slots=True)
class TaskControl:
    """How far an attempt has come, and whether it is still wanted, and here.

    `patience` scales how long what it needs may be missing; its own work begins after
    `steps_before`, where a snapshot ends.
    """

    attempt: AttemptId
    patience: float = 1.0
    cancelled: Event = field(default_factory=Event)
    leaving: Event = field(default_factory=Event)
    steps_done: int = 0
    steps_total: int = 0
    steps_before: int = 0
    began_at: float = field(default_factory=time.monotonic)
    snapshot: Snapshot | None = None
    known_snapshot: Snapshot | None = None

    @property
    def snapshot_is_known(self) -> bool:
        """Whether the manager has heard of the newest snapshot, if there is one."""
        return self.snapshot == self.known_snapshot

    def progress(self) -> Progress:
        """Say how far the attempt has come."""
        return Progress(
            attempt=self.attempt,
            steps_done=self.steps_done,
            steps_total=self.steps_total,
            elapsed_seconds=time.monotonic() - self.began_at,
            snapshot=self.snapshot,
        )

    def raise_if_cancelled(self) -> None:
        """Raise TaskCancelled where the attempt is no longer wanted."""
        if self.cancelled.is_set():
            raise TaskCancelled
