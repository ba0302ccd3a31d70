"""When a worker publishes the state of its task.

Training waits while a snapshot is published, so the time that the last one took decides how soon
the next may follow. The worker publishes the next one only after the manager has heard of the last:
the manager removes snapshots, and only known ones.
"""

from __future__ import annotations

import math

from downpour.core.node.attempt import HeldAttempt

PATIENCE_SECONDS = 5.0
"""How long a worker tries to read or publish a snapshot, at most. Short, because a task can do
without one, and a longer wait would cost what it saves."""

_COST_SHARE = 0.005
"""The most of the training's time: saving may make a shard end half a percent later."""


class SnapshotSchedule:
    """The times at which one attempt publishes snapshots.

    Args:
        every_seconds: the least time between two snapshots; 0: there are none.
        at_seconds: when the training begins.
    """

    def __init__(self, every_seconds: float, at_seconds: float) -> None:
        self._every_seconds = every_seconds
        self.due_at_seconds = at_seconds + every_seconds if every_seconds else math.inf

    def is_due(self, held: HeldAttempt, at_seconds: float) -> bool:
        """Whether to publish a snapshot now.

        Not before the attempt's first step, as its state is then the one that it began with, and
        not after the last, as the update follows.
        """
        if at_seconds < self.due_at_seconds or not held.snapshot_is_known:
            return False
        return held.steps_before < held.steps_done < held.steps_total

    def saved(self, began_at_seconds: float, ended_at_seconds: float) -> None:
        """Note how long the last snapshot took, whether it was published or not."""
        # A slow or failing directory automatically makes snapshots rarer.
        took = ended_at_seconds - began_at_seconds
        self.due_at_seconds = ended_at_seconds + max(self._every_seconds, took / _COST_SHARE)
