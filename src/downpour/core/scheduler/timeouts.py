"""Learns how long a worker may send no heartbeat, and how long an attempt may make no step.

Both timeouts follow from the longest recent gap, which fades slowly. They are for a `patience` of
1; the scheduler multiplies them by the patience in its options.
"""

from __future__ import annotations

HEARTBEATS_A_SECOND = 500
"""Heartbeats per second from all workers together.

Each costs the manager 0.3 to 0.6 ms of one thread, so all of them take about a quarter of that
thread. Up to 500 idle workers still report once a second.
"""

_FADING = 0.98
"""How much of the longest gap is left after each shorter one: half of it after 35 gaps."""


class AdaptiveTimeout:
    """A timeout in seconds: a multiple of the longest recent gap.

    Args:
        unobserved_seconds: the timeout until we know enough gaps.
        shortest_seconds: the least timeout.
        times: the timeout as a multiple of the longest gap.
        enough: how many gaps we must know.
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
        # We use the longest gap and not the mean. Declaring a healthy worker lost costs its
        # attempt, while waiting a little longer for a dead one costs only seconds.
        self._missing = max(0, self._missing - 1)
        self._longest_seconds = max(gap_seconds, _FADING * self._longest_seconds)

    @property
    def seconds(self) -> float:
        """The timeout now."""
        if self._missing:
            return self._unobserved_seconds
        return max(self._shortest_seconds, self._times * self._longest_seconds)


def heartbeat_interval(workers: int) -> float:
    """Return the least seconds between two heartbeats of one worker, for this many workers."""
    return workers / HEARTBEATS_A_SECOND


def heartbeat_timeout() -> AdaptiveTimeout:
    """Limit the time between two heartbeats of a worker."""
    # Heartbeats come at least once a second, so at least five in a row are missing by then.
    return AdaptiveTimeout(unobserved_seconds=10.0, shortest_seconds=5.0, times=4.0, enough=3)


def progress_timeout() -> AdaptiveTimeout:
    """Limit the time between two steps, as learned from attempts that published their update."""
    # Before the first update, we allow ten minutes. An attempt's first pause includes the import of
    # torch and the loading of the examples, and we can't know beforehand how long these take.
    return AdaptiveTimeout(unobserved_seconds=600.0, shortest_seconds=60.0, times=10.0, enough=1)
