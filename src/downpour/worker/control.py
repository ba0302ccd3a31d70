"""One attempt, as the threads beside the training see it."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from threading import Event

from downpour.node.attempt import HeldAttempt
from downpour.values import Snapshot


class TaskCancelled(Exception):
    """The attempt is no longer wanted; not an error of the task."""


class HandOverStop(Exception):
    """The attempt has stopped to be handed over; another worker continues its snapshot."""

    def __init__(self, snapshot: Snapshot) -> None:
        super().__init__(snapshot)
        self.snapshot = snapshot


@dataclass(slots=True, eq=False)
class TaskControl(HeldAttempt):
    """The progress of an attempt, and whether to cancel it or hand it over.

    `patience` scales how long files that it needs may be missing.
    """

    patience: float = 1.0
    # Events, although a signal handler sets them: the main thread, which it interrupts, only reads
    # them, so it never holds their locks.
    cancelled: Event = field(default_factory=Event)
    to_save: Event = field(default_factory=Event)

    def stop(self) -> None:
        """Have the attempt end at its next step, and nothing of it saved."""
        self.to_save.clear()
        self.cancelled.set()

    def save_or_stop(self) -> None:
        """Have the attempt end at its next step, and saved if it is worth that and can be."""
        if not self.cancelled.is_set():
            self.to_save.set()
        self.cancelled.set()

    def begin(self, steps_done: int, steps_total: int) -> None:
        """Note that everything is loaded, and the step at which this attempt's work begins."""
        self.loaded(steps_done, steps_total, time.monotonic())

    def advance(self, steps_done: int) -> None:
        """Note that a step has ended."""
        self.stepped(steps_done, time.monotonic())

    def raise_if_cancelled(self) -> None:
        """Raise TaskCancelled if the attempt is no longer wanted."""
        if self.cancelled.is_set():
            raise TaskCancelled
