"""Predicts a worker's last time; for a new worker, the cluster's median."""

from __future__ import annotations

from downpour.predictor.median import Median
from downpour.predictor.point import Point


class LastValue(Point):
    """Predicts each worker's last time per sample."""

    def __init__(self) -> None:
        super().__init__()
        self._last: dict[str, float] = {}
        self._cluster = Median()

    def predicted_rate(self, worker: str) -> float | None:
        """Return the worker's last time, or the cluster's median for a new worker."""
        last = self._last.get(worker)
        return self._cluster.predicted_rate(worker) if last is None else last

    def observe_rate(self, worker: str, log_seconds: float) -> None:
        """Replace the worker's last time."""
        self._last[worker] = log_seconds
        self._cluster.observe_rate(worker, log_seconds)
