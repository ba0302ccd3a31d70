"""An attempt in a worker: what comes between two steps, and how often it reports.

`cluster/worker/attempt.py` carries out the answers.
"""

import math
from dataclasses import dataclass
from enum import Enum

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
    next step, with or without saving its state (`StepLoop`). They are plain values without a
    lock, because a signal handler may set them. `moved_bytes` are those of files that it has read
    and written since its last step.
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
    moved_bytes: int = 0

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
        self.steps_before, self.steps_total = steps_done, steps_total
        self.stepped(steps_done, at_seconds)

    def stepped(self, steps_done: int, at_seconds: float) -> None:
        """Record how many steps are done, and when the last one ended."""
        self.stepped_at_seconds = at_seconds
        self.steps_done = steps_done
        self.moved_bytes = 0

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
            moved_bytes=self.moved_bytes,
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


# We measured one heartbeat per second: five rounds of 3 s, with one of eight workers at a quarter
# of its speed. The target accuracy then took 1.18 times as long as without a straggler.
_BEATS_A_TASK = 20
# A minimum, because every heartbeat is an event for the manager's one thread.
_SHORTEST_SECONDS = 0.1


def until_next_beat(
    usual_seconds: float, task_seconds: float | None, least_seconds: float = 0.0
) -> float:
    """Return the seconds until a worker's next heartbeat.

    A manager notices a straggler only by its heartbeats. With one report per second, a task of
    three seconds has three. A shard on a worker with a quarter of the speed is then late before a
    policy can act. A worker that is idle, or at a long task, keeps to the manager's interval, so
    that the heartbeats of many workers cost no more than before. With more than some hundreds of
    workers, the manager's answer sets a minimum interval.

    `task_seconds` is the expected length of the worker's task, or its time so far; None if the
    worker is idle.
    """
    wanted = usual_seconds
    if task_seconds is not None:
        wanted = min(usual_seconds, max(_SHORTEST_SECONDS, task_seconds / _BEATS_A_TASK))
    return max(least_seconds, wanted)


PATIENCE_SECONDS = 5.0
"""The longest time in which a worker tries to read or publish a snapshot. It is short because a
task can do without a snapshot, and a longer wait would cost as much time as the snapshot saves."""

_COST_SHARE = 0.005
"""The largest share of the training time: saving may make a shard end half a percent later."""
_FIRST_COST_SHARE = 0.05
"""An attempt's first may cost more: without it, a lost worker counts as a failed attempt."""
_FAILS_EVERY_SECONDS = 24 * 3600.0
"""For snapshots so slow that half a percent makes them too rare. If one takes c seconds, intervals
of √(2 · c · this) lose the least time (Young, 1974)."""


@dataclass(slots=True)
class PublishingPace:
    """How long a worker probably publishes a snapshot: as long as an experiment's last update."""

    snapshot_seconds: float = 0.0
    _snapshot_bytes: int = 0

    def published(self, seconds: float, size_bytes: int, snapshot: Snapshot | None) -> None:
        """Record a task's result, and the last snapshot of its attempt."""
        if snapshot is not None:
            self._snapshot_bytes = snapshot.file.size_bytes
        # A snapshot also has the optimizer's state, which a result may lack.
        self.snapshot_seconds = seconds * max(1.0, self._snapshot_bytes / size_bytes)


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

    Threads and signal handlers may ask the attempt to stop at any time. Training waits while the
    worker publishes a snapshot, so the time for the last one decides how soon the next one may
    follow. The worker publishes the next one only after the manager has heard of the last, because
    the manager removes only snapshots that it knows.

    Args:
        held: the attempt.
        every: the least seconds between two snapshots; 0: no snapshots.
        at_seconds: when the training begins.
        expected: how many seconds the first one will probably take.

    Attributes:
        snapshot_due_at_seconds: the time before which no snapshot is due.
    """

    def __init__(
        self, held: HeldAttempt, every: float, at_seconds: float, expected: float = 0.0
    ) -> None:
        self._held = held
        self._every = every
        self._saves_since = at_seconds
        first = max(every, expected / _FIRST_COST_SHARE)
        self.snapshot_due_at_seconds = at_seconds + first if every else math.inf

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
        if self._is_due(at_seconds):
            self._saves_since = at_seconds
            return NextStep.SAVE
        return NextStep.TRAIN

    def only_trains(self, at_seconds: float) -> bool:
        """Whether nothing else than a step may come next."""
        held = self._held
        return not (held.cancelled or held.to_save or self._is_due(at_seconds))

    def _is_due(self, at_seconds: float) -> bool:
        """Whether to publish a snapshot now.

        Before the attempt's first step, its state is still the one that it began with. After the
        last step, the update follows. Neither needs a snapshot.
        """
        held = self._held
        if at_seconds < self.snapshot_due_at_seconds or not held.snapshot_is_known:
            return False
        return held.steps_before < held.steps_done < held.steps_total

    def saved(self, at_seconds: float) -> None:
        """Record that the worker has published a snapshot, or failed to."""
        # A slow or failing directory automatically makes snapshots rarer.
        took = at_seconds - self._saves_since
        rarest = math.sqrt(2 * took * _FAILS_EVERY_SECONDS)
        interval = max(self._every, min(took / _COST_SHARE, rarest))
        self.snapshot_due_at_seconds = at_seconds + interval
