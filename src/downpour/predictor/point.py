"""The common part of the simple predictors: one expected time per sample, and quantiles around it.

The quantiles follow the predictor's own errors so far. After a report of progress, the expected
time is the time so far over the share done.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import numpy as np

from downpour.predictor import features as f
from downpour.predictor.base import START_LOG_SECONDS, Array
from downpour.predictor.calibration import Tracker, stages

# The first offsets of the quantiles: log seconds, at assignment and at early and late reports.
_SPREAD = ((-0.15, 0.0, 0.25, 0.7), (-0.08, 0.0, 0.15, 0.45), (-0.05, 0.0, 0.1, 0.3))
_RATE = 0.004  # faster than for a calibrated model, because these offsets begin as a guess


class Point(ABC):
    """A model that predicts one time per sample for each worker."""

    def __init__(self) -> None:
        self._tracker = Tracker(_SPREAD, _RATE)

    @abstractmethod
    def predicted_rate(self, worker: str) -> float | None:
        """Return the log seconds per sample that a worker will need; None before any task ended."""

    @abstractmethod
    def observe_rate(self, worker: str, log_seconds: float) -> None:
        """Take in the log seconds per sample of a finished task."""

    def predict(self, workers: Sequence[str], tasks: Array) -> Array:
        """Return the quantiles of the logarithm of the tasks' seconds."""
        # Each offset moves separately, so neighboring ones could cross.
        offsets = np.maximum.accumulate(self._tracker.offsets(stages(tasks)), axis=1)
        quantiles = self._centers(workers, tasks)[:, None] + offsets
        reported = tasks[:, f.SHARE] > 0
        least = np.where(reported, np.log(np.where(reported, tasks[:, f.SECONDS], 1.0)), -np.inf)
        possible: Array = np.maximum(quantiles, least[:, None])  # not before its latest report
        return possible

    def learn(self, workers: Sequence[str], tasks: Array, seconds: Array) -> None:
        """Take in finished tasks: first the errors of their predictions, then their times."""
        outcomes = np.log(seconds)
        # We predicted a task with a report twice, so it moves the offsets of both stages.
        unreported = tasks.copy()
        unreported[:, f.SHARE] = np.nan
        for rows in (unreported, tasks) if np.isfinite(tasks[:, f.SHARE]).any() else (unreported,):
            errors = outcomes - self._centers(workers, rows)
            self._tracker.learn(stages(rows), np.repeat(errors[:, None], 4, axis=1))
        for worker, time in zip(workers, (outcomes - _log_samples(tasks)).tolist(), strict=True):
            self.observe_rate(worker, time)

    def _centers(self, workers: Sequence[str], tasks: Array) -> Array:
        expected = [self.predicted_rate(worker) for worker in workers]
        rates = np.array([START_LOG_SECONDS if rate is None else rate for rate in expected])
        share = tasks[:, f.SHARE]
        reported = share > 0
        pace = np.where(reported, tasks[:, f.SECONDS], 1.0) / np.where(reported, share, 1.0)
        return np.where(reported, np.log(pace), rates + _log_samples(tasks))


def _log_samples(tasks: Array) -> Array:
    """Return the log of the tasks' sizes; that of one sample if a size is missing."""
    samples = tasks[:, f.SAMPLES]
    return np.log(np.where(np.isfinite(samples), samples, 1.0))
