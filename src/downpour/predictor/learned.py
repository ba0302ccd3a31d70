"""The common part of the learned predictors: inputs from workers' histories, offsets as outputs.

A learned model compares the rest of a task with an expectation: the worker's running rate or, after
a report, the pace of that report. It predicts how much longer the rest takes. So its weights hold
for machines of any speed and tasks of any size, and it never predicts an end before the latest
report.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import numpy as np

from downpour.predictor import features as f
from downpour.predictor.base import LEVELS, START_LOG_SECONDS, Array
from downpour.predictor.histories import Histories

_LIMIT = 10.0  # a factor of 22,000; above it, `exp` of a broken model's answer could overflow
# If neither a worker nor its cluster has a history, we only know the order of magnitude. A tenth of
# the tasks take less than 0.22 times the usual time, a fiftieth more than 12 times.
_UNKNOWN = (-1.5, 0.0, 1.5, 2.5)
# The same as equally likely values. Their number is odd, so that one of them is the median.
_UNKNOWN_VALUES = np.interp(
    (np.arange(201) + 0.5) / 201, [0.0, *LEVELS, 1.0], [-2.5, *_UNKNOWN, 3.0]
)


class Learned(ABC):
    """A model that predicts offsets from the inputs of `Histories`."""

    def __init__(self) -> None:
        self._histories = Histories(START_LOG_SECONDS)

    @abstractmethod
    def offsets(self, at: Array, inputs: Array, reported: Array) -> Array:
        """Return the quantiles (rows, 4) of the log of actual over expected time, in rising order.

        Args:
            at: The workers' numbers.
            inputs: One row per task (`histories.INPUTS`).
            reported: Which of the tasks have reported progress.
        """

    def advance_states(self, at: Array, events: Array, fresh: Array) -> None:  # noqa: B027 - may do nothing
        """Take in finished tasks (`histories.EVENTS`); `fresh` marks workers' first tasks."""

    def predict(self, workers: Sequence[str], tasks: Array) -> Array:
        """Return the quantiles of the logarithm of the tasks' seconds."""
        at = self._histories.find(workers)
        inputs, base, size = self._histories.describe(at, tasks)
        reported = tasks[:, f.SHARE] > 0
        offsets = np.clip(self.offsets(at, inputs, reported), -_LIMIT, _LIMIT)
        strange = (at == 0) & ~reported
        if strange.any():
            offsets[strange] = for_a_stranger(self._histories.times_across_workers())
        return total_from_rest(offsets + (base + size)[:, None], tasks)

    def learn(self, workers: Sequence[str], tasks: Array, seconds: Array) -> None:
        """Take in finished tasks of different workers."""
        at = self._histories.add(workers)
        fresh = self._histories.are_new(at)  # before they learn
        self.advance_states(at, self._histories.learn(at, tasks, seconds), fresh)


def for_a_stranger(times: Array) -> Array:
    """Return the quantiles (4,) of how a worker without a past compares with its cluster.

    We treat the worker as one more draw from the same source as the workers' `times`. So each time
    stands for one of n + 1 draws, as in split conformal prediction (Vovk, Gammerman and Shafer
    2005). The last draw stands for workers unlike all of these, of which we know only the order of
    magnitude. We don't ask models here: no worker in the traces joins late, so they haven't learned
    to answer.
    """
    values = np.concatenate([times, _UNKNOWN_VALUES])
    # We use whole numbers, because rounded sums of fractions could miss a level that is met
    # exactly.
    weights = np.repeat([len(_UNKNOWN_VALUES), 1], [len(times), len(_UNKNOWN_VALUES)])
    order = np.argsort(values)
    share = np.cumsum(weights[order]) / weights.sum()
    quantiles: Array = values[order][np.searchsorted(share, LEVELS)]
    return quantiles


def total_from_rest(rest: Array, tasks: Array) -> Array:
    """Return the log of tasks' seconds from that of their rest, scaled to a whole task."""
    reported = tasks[:, f.SHARE] > 0
    share = np.where(reported, tasks[:, f.SHARE], 0.0)
    elapsed = np.where(reported, tasks[:, f.SECONDS], 0.0)
    total: Array = np.log(elapsed[:, None] + (1 - share)[:, None] * np.exp(rest))
    return total


def rest_from_total(tasks: Array, seconds: Array) -> Array:
    """Return the log seconds of tasks' rest, scaled to a whole task: inverts `total_from_rest`."""
    reported = tasks[:, f.SHARE] > 0
    share = np.where(reported, tasks[:, f.SHARE], 0.0)
    elapsed = np.where(reported, tasks[:, f.SECONDS], 0.0)
    # If a result came right after its report, the rest is 0, which has no logarithm.
    rest: Array = np.log(np.maximum(seconds - elapsed, 1e-3 * seconds) / (1 - share))
    return rest
