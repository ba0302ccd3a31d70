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
    `steps_before`, where a snapshot ends. `stepped_at` is when its last step ended, or its
    loading.
    """

    attempt: AttemptId
    patience: float = 1.0
    cancelled: Event = field(default_factory=Event)
    leaving: Event = field(default_factory=Event)
    steps_done: int = 0
    steps_total: int = 0
    steps_before: int = 0
    began_at: float = field(default_factory=time.monotonic)
    stepped_at: float | None = None
    snapshot: Snapshot | None = None
    known_snapshot: Snapshot | None = None

    @property
    def snapshot_is_known(self) -> bool:
        """Whether the manager has heard of the newest snapshot, if there is one."""
        return self.snapshot == self.known_snapshot

    def begin(self, steps_done: int, steps_total: int) -> None:
        """Note that all is loaded, and where the attempt's own work begins."""
        self.steps_before = self.steps_done = steps_done
        self.steps_total = steps_total
        self.stepped_at = time.monotonic()

    def advance(self, steps_done: int) -> None:
        """Note that a step has ended."""
        self.stepped_at = time.monotonic()
        self.steps_done = steps_done

    @property
    def expected_seconds(self) -> float:
        """How long the attempt takes in all, as far as its steps tell; before one, how long yet."""
        own = self.steps_done - self.steps_before
        if self.stepped_at is None or own <= 0:
            return time.monotonic() - self.began_at
        left = self.steps_total - self.steps_done
        return (self.stepped_at - self.began_at) * (1 + left / own)

    def progress(self) -> Progress:
        """Say how far the attempt has come."""
        return Progress(
            attempt=self.attempt,
            steps_done=self.steps_done,
            steps_total=self.steps_total,
            elapsed_seconds=(self.stepped_at or self.began_at) - self.began_at,
            snapshot=self.snapshot,
        )

    def raise_if_cancelled(self) -> None:
        """Raise TaskCancelled where the attempt is no longer wanted."""
        if self.cancelled.is_set():
            raise TaskCancelled
