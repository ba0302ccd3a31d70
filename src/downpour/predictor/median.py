"""Predicts the cluster's median for every worker: best if names don't stand for machines."""

from __future__ import annotations

import statistics
from collections import deque

from downpour.predictor.point import Point

_TASKS = 200  # of the whole cluster: few enough for the median to follow changes


class Median(Point):
    """Predicts the median time per sample of the cluster's last tasks."""

    def __init__(self) -> None:
        super().__init__()
        self._times: deque[float] = deque(maxlen=_TASKS)
        self._median: float | None = None

    def predicted_rate(self, worker: str) -> float | None:  # noqa: ARG002 - the same for all
        """Return the cluster's median."""
        if self._median is None and self._times:
            self._median = statistics.median(self._times)
        return self._median

    def observe_rate(self, worker: str, log_seconds: float) -> None:  # noqa: ARG002
        """Count the task among the last ones."""
        self._times.append(log_seconds)
        self._median = None
