"""Decides between two steps of a task: train on, save, hand over, stop or finish.

`cluster/worker/task_runner.py` carries out the answers with torch and files, and
`virtual/simulated/training.py` lets virtual time pass instead.
"""

from __future__ import annotations

from enum import Enum

from downpour.core.node.attempt import HeldAttempt
from downpour.core.node.snapshot_schedule import SnapshotSchedule


class NextStep(Enum):
    """What to do next with an attempt whose task is loaded."""

    TRAIN = "train"
    """Train one step, and record it with `HeldAttempt.stepped`."""
    SAVE = "save"
    """Publish a snapshot, call `saved` whether that succeeds or not, and continue."""
    HAND_OVER = "hand over"
    """Publish a snapshot and end the attempt with it; if that fails, ask again."""
    STOP = "stop"
    """End without a result."""
    FINISH = "finish"
    """Publish the update: all steps are done."""


class StepLoop:
    """Decides, before each step of one attempt, what comes next.

    Args:
        held: the attempt; threads and signal handlers may ask it to stop at any time.
        snapshot_every_seconds: the least time between two snapshots; 0: no snapshots.
        at_seconds: when the training begins.
    """

    def __init__(self, held: HeldAttempt, snapshot_every_seconds: float, at_seconds: float) -> None:
        self._held = held
        self._schedule = SnapshotSchedule(snapshot_every_seconds, at_seconds)
        self._saves_since = at_seconds

    @property
    def snapshot_due_at_seconds(self) -> float:
        """The time before which no snapshot is due; infinite if there are none."""
        return self._schedule.due_at_seconds

    def next(self, at_seconds: float) -> NextStep:
        """Return what to do now; each request to save gets one answer.

        An attempt that has done all its steps finishes in spite of other requests, because its
        update is worth more than its state.
        """
        held = self._held
        # We read this before `to_save`, which `save_or_stop` sets first. Otherwise a signal between
        # the two reads would stop an attempt without saving its state.
        cancelled = held.cancelled
        if held.steps_done == held.steps_total:
            return NextStep.FINISH
        if held.to_save:
            # We clear it at once, so that a failure to publish does not repeat at each step.
            held.to_save = False
            if not cancelled or held.steps_done > held.steps_before:
                return NextStep.HAND_OVER
        if cancelled:
            return NextStep.STOP
        if self._schedule.is_due(held, at_seconds):
            self._saves_since = at_seconds
            return NextStep.SAVE
        return NextStep.TRAIN

    def saved(self, at_seconds: float) -> None:
        """Record that the worker has published a snapshot, or failed to."""
        self._schedule.saved(self._saves_since, at_seconds)
