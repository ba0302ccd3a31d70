"""One attempt that a worker holds: how far it has come, and which of its snapshots are known."""

from __future__ import annotations

from dataclasses import dataclass

from downpour.values import AttemptId, Progress, Snapshot


@dataclass(slots=True, eq=False)
class HeldAttempt:
    """An attempt from its acceptance until the manager has acknowledged its report.

    Its own work begins after `steps_before`, where the snapshot ends that it goes on from.
    `stepped_at_seconds` is when its last step ended, or its loading. `known_snapshot` is the
    newest one that the manager has heard of. Two objects may stand for one attempt: a manager may
    ask again for what its worker is just giving up.
    """

    attempt: AttemptId
    began_at_seconds: float = 0.0
    steps_before: int = 0
    steps_done: int = 0
    steps_total: int = 0
    stepped_at_seconds: float | None = None
    snapshot: Snapshot | None = None
    known_snapshot: Snapshot | None = None

    def loaded(self, steps_done: int, steps_total: int, at_seconds: float) -> None:
        """Note that all is loaded, and where the attempt's own work begins."""
        self.steps_before = self.steps_done = steps_done
        self.steps_total = steps_total
        self.stepped_at_seconds = at_seconds

    def stepped(self, steps_done: int, at_seconds: float) -> None:
        """Note how many steps are done, and when the last of them ended."""
        self.stepped_at_seconds = at_seconds
        self.steps_done = steps_done

    def expected_seconds(self, now_seconds: float) -> float:
        """Return how long the attempt takes in all, as far as its steps tell.

        Before its first step it is the time that has passed since it began.
        """
        own = self.steps_done - self.steps_before
        if self.stepped_at_seconds is None or own <= 0:
            return now_seconds - self.began_at_seconds
        left = self.steps_total - self.steps_done
        return (self.stepped_at_seconds - self.began_at_seconds) * (1 + left / own)

    def progress(self) -> Progress:
        """Say how far the attempt has come."""
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
        """Forget a snapshot that the manager has not heard of; returns it, to be removed.

        It is asked for when the training ends. No heartbeat mentions the snapshot from then on:
        the manager would name a file that is gone to the next worker, which waits for it.
        """
        if self.snapshot_is_known:
            return None
        withdrawn, self.snapshot = self.snapshot, self.known_snapshot
        return withdrawn
