"""How long a worker may be silent, and an attempt make no step: learned, not configured.

Two things are judged: the time between a worker's heartbeats, and the time between an attempt's
steps although its worker is heard of. Both timeouts follow from the longest gap of late, which is
forgotten slowly, and hold for a `patience` of 1: the scheduler multiplies them by the patience it
was given.
"""

from __future__ import annotations

_FADING = 0.98
"""Of the longest gap, at each one that is shorter: half of it is forgotten after 35."""


class AdaptiveTimeout:
    """Learns what is usual, and says how much more than that is too much; seconds.

    Args:
        unobserved_seconds: the limit before enough was observed.
        shortest_seconds: it is never less.
        times: the longest gap of late, that often.
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
        """Take note of a gap that ended well."""
        # The longest and not the mean, because what must not happen is to judge a healthy worker.
        self._missing = max(0, self._missing - 1)
        self._longest_seconds = max(gap_seconds, _FADING * self._longest_seconds)

    @property
    def seconds(self) -> float:
        """How long a gap may be."""
        if self._missing:
            return self._unobserved_seconds
        return max(self._shortest_seconds, self._times * self._longest_seconds)


def heartbeat_timeout() -> AdaptiveTimeout:
    """Limit the time between two heartbeats of a worker."""
    return AdaptiveTimeout(unobserved_seconds=10.0, shortest_seconds=5.0, times=4.0, enough=3)


def progress_timeout() -> AdaptiveTimeout:
    """Limit the time between two steps, learned from attempts that came to an end."""
    return AdaptiveTimeout(unobserved_seconds=600.0, shortest_seconds=60.0, times=10.0, enough=1)
