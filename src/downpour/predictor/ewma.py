"""Predicts the mean of a worker's times, with more weight on recent ones."""

from __future__ import annotations

from downpour.predictor.median import Median
from downpour.predictor.point import Point

_RATE = 0.5


class Ewma(Point):
    """Predicts an exponentially weighted mean of each worker's log times per sample."""

    def __init__(self, rate: float = _RATE) -> None:
        """Give each new time the weight `rate`, and all earlier times together the rest."""
        super().__init__()
        self._rate = rate
        self._means: dict[str, float] = {}
        self._cluster = Median()

    def predicted_rate(self, worker: str) -> float | None:
        """Return the worker's mean, or the cluster's median for a new worker."""
        mean = self._means.get(worker)
        return self._cluster.predicted_rate(worker) if mean is None else mean

    def observe_rate(self, worker: str, log_seconds: float) -> None:
        """Move the worker's mean toward its latest time."""
        mean = self._means.get(worker, log_seconds)
        self._means[worker] = mean + self._rate * (log_seconds - mean)
        self._cluster.observe_rate(worker, log_seconds)
