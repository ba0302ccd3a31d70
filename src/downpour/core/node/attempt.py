"""One attempt that a worker holds: its progress, and the snapshots that the manager knows."""

from __future__ import annotations

from dataclasses import dataclass

from downpour.base.values import AttemptId, Progress, Snapshot


@dataclass(slots=True, eq=False)
class HeldAttempt:
    """An attempt from its acceptance until the manager has acknowledged its report.

    `part` is its part of the shard, and its model. It tells attempts apart, because a manager whose
    journal has lost its end may request other work under the same name. The attempt's own work
    begins after `steps_before`, the steps in the snapshot that it continues from. Its last step, or
    its loading, ended at `stepped_at_seconds`. `known_snapshot` is the newest snapshot that the
    manager has heard of. A manager may request an attempt again while its worker is stopping it.
    Then two objects stand for one attempt. `cancelled` and `to_save` ask the training to end at its
    next step, with or without saving its state (`step_loop.py`). They are plain values without a
    lock, because a signal handler may set them.
    """

    attempt: AttemptId
    part: tuple[object, ...] = ()
    began_at_seconds: float = 0.0
    steps_before: int = 0
    steps_done: int = 0
    steps_total: int = 0
    stepped_at_seconds: float | None = None
    snapshot: Snapshot | None = None
    known_snapshot: Snapshot | None = None
    cancelled: bool = False
    to_save: bool = False

    def stop(self) -> None:
        """Stop the training at its next step without saving it."""
        self.to_save = False
        self.cancelled = True

    def save_and_stop(self) -> None:
        """Save and stop the training at its next step; if saving fails, the training continues."""
        self.to_save = self.to_save or not self.cancelled

    def save_or_stop(self) -> None:
        """Stop the training at its next step, and save it if that is worthwhile and possible."""
        self.save_and_stop()
        self.cancelled = True

    def loaded(self, steps_done: int, steps_total: int, at_seconds: float) -> None:
        """Record the end of loading, and the steps done before the attempt's own work."""
        self.steps_before = self.steps_done = steps_done
        self.steps_total = steps_total
        self.stepped_at_seconds = at_seconds

    def stepped(self, steps_done: int, at_seconds: float) -> None:
        """Record how many steps are done, and when the last one ended."""
        self.stepped_at_seconds = at_seconds
        self.steps_done = steps_done

    def expected_seconds(self, now_seconds: float) -> float:
        """Return the attempt's total time at the pace of its steps so far, loading included.

        Before the attempt's first step, return the time since it began.
        """
        # We count only its own steps, because the snapshot's steps took none of its time.
        own = self.steps_done - self.steps_before
        if self.stepped_at_seconds is None or own <= 0:
            return now_seconds - self.began_at_seconds
        left = self.steps_total - self.steps_done
        return (self.stepped_at_seconds - self.began_at_seconds) * (1 + left / own)

    def progress(self) -> Progress:
        """Return how far the attempt has come."""
        # We measure until the last step, not until now. So the speed is that of whole steps, no
        # matter when the worker sends the heartbeat.
        stepped_at = self.stepped_at_seconds
        elapsed = stepped_at - self.began_at_seconds if stepped_at is not None else 0.0
        return Progress(
            attempt=self.attempt,
            steps_done=self.steps_done,
            steps_total=self.steps_total,
            elapsed_seconds=elapsed,
            snapshot=self.snapshot,
        )

    @property
    def snapshot_is_known(self) -> bool:
        """Whether the manager has heard of the newest snapshot, if there is one."""
        return self.snapshot == self.known_snapshot

    def withdraw_unknown(self) -> Snapshot | None:
        """Forget a snapshot that the manager has not heard of, and return it for removal.

        The driver calls this when the training ends. From then on, no heartbeat may mention the
        snapshot. Otherwise the manager would name the removed file to the next worker, which would
        wait for it.
        """
        if self.snapshot_is_known:
            return None
        withdrawn, self.snapshot = self.snapshot, self.known_snapshot
        return withdrawn
