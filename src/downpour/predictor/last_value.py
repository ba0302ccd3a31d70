"""A worker needs as long as it needed last time; a new worker as long as the cluster's median."""

from __future__ import annotations

from downpour.predictor.median import Median
from downpour.predictor.point import Point


class LastValue(Point):
    """Expects each worker's last time a sample."""

    def __init__(self) -> None:
        super().__init__()
        self._last: dict[str, float] = {}
        self._cluster = Median()

    def predicted_rate(self, worker: str) -> float | None:
        """Return the worker's last time."""
        last = self._last.get(worker)
        return self._cluster.predicted_rate(worker) if last is None else last

    def observe_rate(self, worker: str, log_seconds: float) -> None:
        """Remember it until the next."""
        self._last[worker] = log_seconds
        self._cluster.observe_rate(worker, log_seconds)
