"""Makes a worker look slow: stops it and lets it continue, many times per second.

SIGSTOP and SIGCONT need no rights beyond the user's own, and the worker's code knows nothing of
them. Everything that the worker does takes longer: steps, files, heartbeats.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from threading import Event, Thread

from downpour.cluster.disturbing.disturbances import Slow
from downpour.host.process import signal_group

STRETCH_SECONDS = 0.05
"""The length of a run or a stop: the shorter of the two.

On a busy machine, a stop takes up to 3 ms longer. With 20 ms, a process that should run at 0.25 of
its speed ran at 0.21. With this value, it runs at 0.24.
"""
STILL_SECONDS_MAX = 1.0
"""A stop delays a heartbeat by its own length at most. The manager misses a worker after 5 s."""
_OWED_SECONDS_MAX = 3 * STILL_SECONDS_MAX
_RUN_SECONDS_MIN = 0.001


class DutyCycle:
    """Decides how long a process runs and stands still, to reach a share of its full speed.

    A thread that wakes late makes a stretch too long. The next stretches make up for it, so the
    share is right over time.

    Args:
        speed: the share of the time in which the process runs, above 0 and below 1.
    """

    def __init__(self, speed: float) -> None:
        self._still_per_run = 1 / speed - 1
        longest = STILL_SECONDS_MAX / self._still_per_run
        self._usual_seconds = min(STRETCH_SECONDS * max(1.0, 1 / self._still_per_run), longest)
        self._owed_seconds = 0.0

    @property
    def run_seconds(self) -> float:
        """How long the process should run now."""
        return max(_RUN_SECONDS_MIN, self._usual_seconds - self._owed_seconds / self._still_per_run)

    @property
    def still_seconds(self) -> float:
        """How long the process should stand still now."""
        return min(max(0.0, self._owed_seconds), STILL_SECONDS_MAX)

    def ran(self, seconds: float) -> None:
        """Note how long the process has run."""
        # Bounded both ways, so that a laptop's sleep of an hour does not make the process owe an
        # hour.
        owed = self._owed_seconds + seconds * self._still_per_run
        self._owed_seconds = min(owed, _OWED_SECONDS_MAX)

    def stood(self, seconds: float) -> None:
        """Note how long the process has stood still."""
        self._owed_seconds = max(self._owed_seconds - seconds, -_OWED_SECONDS_MAX)


class Slowing:
    """Slows a worker in a separate thread, until `close`.

    Args:
        slow: the worker, and how slow it is.
        process_of: returns the worker's current process; None while it has none.
    """

    def __init__(self, slow: Slow, process_of: Callable[[str], int | None]) -> None:
        self._slow = slow
        self._process_of = process_of
        self._cycle = DutyCycle(slow.speed) if slow.speed < 1 else None
        self._over = Event()
        self._thread = Thread(target=self._act, name=f"slow {slow.who}", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Let the worker run at full speed; returns when the thread has ended."""
        self._over.set()
        self._thread.join()

    def _act(self) -> None:
        began = time.monotonic()
        while not self._over.is_set():
            until_pause, paused = self._pause_at(time.monotonic() - began)
            if paused:
                self._stand(paused)
            elif self._cycle is None:
                self._over.wait(until_pause)
            else:
                self._cycle.ran(self._run(min(self._cycle.run_seconds, until_pause)))
                self._cycle.stood(self._stand(self._cycle.still_seconds))

    def _pause_at(self, seconds: float) -> tuple[float, float]:
        """Return the time until the next pause, and the rest of the current one."""
        pauses = self._slow.pauses
        if pauses is None:
            return float("inf"), 0.0
        # The pause comes last in each interval, so a worker begins before it pauses.
        left = pauses.every_seconds - seconds % pauses.every_seconds
        return max(0.0, left - pauses.still_seconds), left if left <= pauses.still_seconds else 0.0

    def _run(self, seconds: float) -> float:
        """Let the worker run; returns how long it ran."""
        began = time.monotonic()
        self._over.wait(seconds)
        return time.monotonic() - began

    def _stand(self, seconds: float) -> float:
        """Stop the worker for a moment; returns how long it stood still."""
        process = self._process_of(self._slow.who)
        if process is None:
            return self._run(seconds)
        began = time.monotonic()
        signal_group(process, signal.SIGSTOP)
        try:
            self._over.wait(seconds)
        finally:
            signal_group(process, signal.SIGCONT)
        return time.monotonic() - began
