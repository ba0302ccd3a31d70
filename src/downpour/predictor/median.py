"""Every worker needs what the cluster's median is, whoever it is: best where names mean nothing."""

from __future__ import annotations

import statistics
from collections import deque

from downpour.predictor.point import Point

_TASKS = 200


class Median(Point):
    """Expects the median time a sample of the cluster's last tasks."""

    def __init__(self) -> None:
        super().__init__()
        self._times: deque[float] = deque(maxlen=_TASKS)
        self._median: float | None = None

    def predicted_rate(self, worker: str) -> float | None:  # noqa: ARG002 - whoever it is
        """Return the cluster's median."""
        if self._median is None and self._times:
            self._median = statistics.median(self._times)
        return self._median

    def observe_rate(self, worker: str, log_seconds: float) -> None:  # noqa: ARG002
        """Count the task among the last ones."""
        self._times.append(log_seconds)
        self._median = None
