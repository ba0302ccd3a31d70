"""Decides between two steps of a task: train on, save, hand over, stop or finish.

`cluster/worker/task_runner.py` carries out the answers with torch and files,
`virtual/simulated/training.py` by letting virtual time pass.
"""

from __future__ import annotations

from enum import Enum

from downpour.core.node.attempt import HeldAttempt
from downpour.core.node.snapshot_schedule import SnapshotSchedule


class NextStep(Enum):
    """What to do next with an attempt whose task is loaded."""

    TRAIN = "train"
    """Train one step, and note it with `HeldAttempt.stepped`."""
    SAVE = "save"
    """Publish a snapshot and go on; then call `saved`, whether it was published or not."""
    HAND_OVER = "hand over"
    """Publish a snapshot and end with it; if that fails, ask again."""
    STOP = "stop"
    """End without a result."""
    FINISH = "finish"
    """Publish the update: all steps are done."""


class StepLoop:
    """Decides, before each step of one attempt, what comes next.

    Args:
        held: the attempt; threads and signal handlers may ask it to stop at any time.
        snapshot_every_seconds: the least time between two snapshots; 0: there are none.
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
        """Return what to do now; a request to save is answered once.

        An attempt that has done all its steps finishes in spite of other requests, because its
        update is worth more than its state.
        """
        held = self._held
        # Read before `to_save`, which `save_or_stop` sets first: a signal that arrives between the
        # two lines would otherwise stop an attempt whose state was to be saved.
        cancelled = held.cancelled
        if held.steps_done == held.steps_total:
            return NextStep.FINISH
        if held.to_save:
            # Cleared at once, so that a failure to publish is not repeated at each step.
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
        """Note that the attempt to publish a snapshot has ended."""
        self._schedule.saved(self._saves_since, at_seconds)
