"""Predictors of a line or two."""

from __future__ import annotations

import statistics
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Mapping, Sequence

import numpy as np

from downpour.predictor import features as f
from downpour.predictor.calibration import Tracker, above_elapsed, stages
from downpour.predictor.features import START_LOG_SECONDS, Array
from downpour.predictor.learned import Learned

# The first offsets of the quantiles: log seconds, at assignment and at early and late reports.
_SPREAD = ((-0.15, 0.0, 0.25, 0.7), (-0.08, 0.0, 0.15, 0.45), (-0.05, 0.0, 0.1, 0.3))
_RATE = 0.004  # faster than for a calibrated model, because these offsets begin as a guess


class Point(ABC):
    """A model that predicts one time per sample for each worker.

    The quantiles follow the predictor's own errors so far. After a report of progress, the expected
    time is the time so far over the share done.
    """

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
        return above_elapsed(self._centers(workers, tasks)[:, None] + offsets, tasks)

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


BEYOND = 3.0  # standard deviations: further out, a straight line does not hold


class Ridge(Learned):
    """Linear in the inputs, with quantiles at a fixed distance from the center.

    Arrays for both kinds of prediction, first at assignment, then after reports: `weights`,
    `center` and `scale` of shape `(2, inputs)`, and `spread` of shape `(2, 4)`.
    """

    def __init__(self, arrays: Mapping[str, Array]) -> None:
        """Take the arrays of a fit (`fit_ridge` of the laboratory)."""
        super().__init__()
        self._arrays = {name: array.astype(np.float64) for name, array in arrays.items()}

    def offsets(self, at: Array, inputs: Array, reported: Array) -> Array:  # noqa: ARG002
        """Return the quantiles of the log of actual over expected time."""
        kind = reported.astype(int)
        scaled = (inputs - self._arrays["center"][kind]) / self._arrays["scale"][kind]
        scaled = np.clip(scaled, -BEYOND, BEYOND)
        center: Array = (scaled * self._arrays["weights"][kind]).sum(axis=1)
        quantiles: Array = center[:, None] + self._arrays["spread"][kind]
        return quantiles


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


_FADING = 0.5  # the weight of a new time; all earlier times together have the rest


class Ewma(Point):
    """Predicts an exponentially weighted mean of each worker's log times per sample.

    A new worker has the cluster's median.
    """

    def __init__(self) -> None:
        super().__init__()
        self._means: dict[str, float] = {}
        self._cluster = Median()

    def predicted_rate(self, worker: str) -> float | None:
        """Return the worker's mean, or the cluster's median for a new worker."""
        mean = self._means.get(worker)
        return self._cluster.predicted_rate(worker) if mean is None else mean

    def observe_rate(self, worker: str, log_seconds: float) -> None:
        """Move the worker's mean toward its latest time."""
        mean = self._means.get(worker, log_seconds)
        self._means[worker] = self._moved(mean, log_seconds)
        self._cluster.observe_rate(worker, log_seconds)

    def _moved(self, mean: float, latest: float) -> float:
        return mean + _FADING * (latest - mean)


class LastValue(Ewma):
    """Predicts each worker's last time per sample."""

    def _moved(self, mean: float, latest: float) -> float:
        del mean
        return latest
