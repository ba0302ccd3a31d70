"""When a worker publishes the state of its task.

Training waits while the worker publishes a snapshot, so the time for the last one decides how soon
the next one may follow. The worker publishes the next one only after the manager has heard of the
last, because the manager removes only snapshots that it knows.
"""

from __future__ import annotations

import math

from downpour.core.node.attempt import HeldAttempt

PATIENCE_SECONDS = 5.0
"""The longest time in which a worker tries to read or publish a snapshot. It is short because a
task can do without a snapshot, and a longer wait would cost as much time as the snapshot saves."""

_COST_SHARE = 0.005
"""The largest share of the training time: saving may make a shard end half a percent later."""


class SnapshotSchedule:
    """The times at which one attempt publishes snapshots.

    Args:
        every_seconds: the least time between two snapshots; 0: no snapshots.
        at_seconds: when the training begins.
    """

    def __init__(self, every_seconds: float, at_seconds: float) -> None:
        self._every_seconds = every_seconds
        self.due_at_seconds = at_seconds + every_seconds if every_seconds else math.inf

    def is_due(self, held: HeldAttempt, at_seconds: float) -> bool:
        """Whether to publish a snapshot now.

        Before the attempt's first step, its state is still the one that it began with. After the
        last step, the update follows. Neither needs a snapshot.
        """
        if at_seconds < self.due_at_seconds or not held.snapshot_is_known:
            return False
        return held.steps_before < held.steps_done < held.steps_total

    def saved(self, began_at_seconds: float, ended_at_seconds: float) -> None:
        """Record how long the last snapshot took, published or not."""
        # A slow or failing directory automatically makes snapshots rarer.
        took = ended_at_seconds - began_at_seconds
        self.due_at_seconds = ended_at_seconds + max(self._every_seconds, took / _COST_SHARE)
