"""How long a worker may send no heartbeat, and an attempt make no step: learned, not configured.

Both timeouts follow from the longest gap seen of late, which is forgotten slowly. They hold for a
`patience` of 1: the scheduler multiplies them by the patience of its options.
"""

from __future__ import annotations

HEARTBEATS_A_SECOND = 500
"""Heartbeats per second, of all workers together.

Each costs the manager 0.3 to 0.6 ms of one thread, so these take a quarter of it. Up to 500 idle
workers still report once a second.
"""

_FADING = 0.98
"""The decay of the longest gap after each shorter one: half of it is left after 35."""


class AdaptiveTimeout:
    """A timeout that is a multiple of the longest gap seen of late; seconds.

    Args:
        unobserved_seconds: the timeout until enough gaps are known.
        shortest_seconds: the least timeout.
        times: the timeout over the longest gap.
        enough: how many gaps must be known.
    """

    def __init__(
        self, *, unobserved_seconds: float, shortest_seconds: float, times: float, enough: int
    ) -> None:
        self._unobserved_seconds = unobserved_seconds
        self._shortest_seconds = shortest_seconds
        self._times = times
        self._missing = enough
        self._longest_seconds = 0.0

    def learn(self, gap_seconds: float) -> None:
        """Note a gap that ended well."""
        # The longest and not the mean: to take a healthy worker for lost costs its attempt, and to
        # wait a little longer for a dead one costs seconds.
        self._missing = max(0, self._missing - 1)
        self._longest_seconds = max(gap_seconds, _FADING * self._longest_seconds)

    @property
    def seconds(self) -> float:
        """The timeout now."""
        if self._missing:
            return self._unobserved_seconds
        return max(self._shortest_seconds, self._times * self._longest_seconds)


def heartbeat_interval(workers: int) -> float:
    """Return the least seconds between two heartbeats of a worker, by the number of workers."""
    return workers / HEARTBEATS_A_SECOND


def heartbeat_timeout() -> AdaptiveTimeout:
    """Limit the time between two heartbeats of a worker."""
    # Heartbeats come at least once a second: five of them in a row, or more, are missing then.
    return AdaptiveTimeout(unobserved_seconds=10.0, shortest_seconds=5.0, times=4.0, enough=3)


def progress_timeout() -> AdaptiveTimeout:
    """Limit the time between two steps, learned from attempts that have published their update."""
    # Ten minutes until one has: the first pause of an attempt includes the import of torch and the
    # loading of the examples, and nothing says beforehand how long these take.
    return AdaptiveTimeout(unobserved_seconds=600.0, shortest_seconds=60.0, times=10.0, enough=1)
