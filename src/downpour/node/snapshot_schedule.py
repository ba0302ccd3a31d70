"""When a worker publishes the state of its task.

Training stands still meanwhile, so what the last snapshot took decides how soon the next may
follow. The worker saves again only after the manager has heard of the last snapshot: the manager
removes snapshots, and only those that it knows.
"""

from __future__ import annotations

from downpour.node.attempt import HeldAttempt

_COST_SHARE = 0.005
"""Of the training's time, at most: a worker that saves ends a shard half a percent later."""


class SnapshotSchedule:
    """Of one attempt.

    Args:
        every_seconds: how long to wait between two snapshots, at least; 0: there are none.
        at_seconds: when the training begins.
    """

    def __init__(self, every_seconds: float, at_seconds: float) -> None:
        self._every_seconds = every_seconds
        self.due_at_seconds = at_seconds + every_seconds

    def is_due(self, held: HeldAttempt, at_seconds: float) -> bool:
        """Whether to publish a snapshot now; not where the training is at its end."""
        if not self._every_seconds or at_seconds < self.due_at_seconds:
            return False
        return held.steps_done != held.steps_total and held.snapshot_is_known

    def saved(self, began_at_seconds: float, ended_at_seconds: float) -> None:
        """Note how long the last try took, whatever came of it."""
        took = ended_at_seconds - began_at_seconds
        self.due_at_seconds = ended_at_seconds + max(self._every_seconds, took / _COST_SHARE)
