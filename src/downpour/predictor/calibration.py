"""Recalibration: predicted quantiles are moved until the promised share of outcomes is below them.

A tracker holds an offset for each level and moves it a little after every outcome: up by the level
when the outcome was above, down by one minus the level when it was below. It comes to rest where
exactly that share of outcomes stays below (adaptive conformal inference, Gibbs and Candès 2021).
The method assumes nothing about the outcomes, neither that they repeat nor that they are
independent. There are offsets of their own for predictions at assignment and for early and late
reports of progress.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from downpour.predictor import features as f
from downpour.predictor.base import LEVELS, Array, Model

STAGES = 3
_LATE = 0.375  # half-way between reports at 25 and 50 %, which the traces have
# A worker that leaves in the middle of a task leaves forecasts behind that have no outcome.
_PENDING_MAX = 20_000
_LEVELS = np.array(LEVELS)


def stages(tasks: Array) -> Array:
    """Return 0 for tasks at assignment, 1 and 2 for early and late reports of progress."""
    share = tasks[:, f.SHARE]  # NaN is above nothing
    return (share > 0).astype(int) + (share > _LATE)


class Tracker:
    """Offsets for the quantiles of logarithms, by stage, that follow the outcomes."""

    def __init__(self, start: Sequence[Sequence[float]], rate: float) -> None:
        """Begin with the offsets `start` (stages, 4); `rate` is how far one outcome moves them."""
        self._offsets = np.array(start, dtype=float)
        self._rate = rate

    def offsets(self, stage: Array) -> Array:
        """Return the offsets (rows, 4) for predictions at these stages."""
        return self._offsets[stage]

    def learn(self, stage: Array, surprises: Array) -> None:
        """Take in outcomes: what came out less what the offsets are added to, (rows, 4)."""
        for place in np.unique(stage):
            here = surprises[stage == place]
            # Plus the level for an outcome above, minus one minus the level for one below.
            above = (here > self._offsets[place]) - (1 - _LEVELS)
            self._offsets[place] += self._rate * above.sum(axis=0)


class PendingForecasts:
    """What was predicted for tasks whose outcome is not known yet, by worker and stage."""

    def __init__(self) -> None:
        self._rows: dict[tuple[str, int], Array] = {}

    def remember(self, workers: Sequence[str], stage: Array, rows: Sequence[Array]) -> None:
        """Remember predictions; each replaces the worker's earlier one of the same stage."""
        self._rows.update(zip(zip(workers, stage.tolist(), strict=True), rows, strict=True))
        while len(self._rows) > _PENDING_MAX:
            del self._rows[next(iter(self._rows))]

    def take(self, workers: Sequence[str], outcomes: Array) -> Iterator[tuple[int, Array, float]]:
        """Yield (stage, prediction, outcome) for these workers, and forget their predictions."""
        for worker, outcome in zip(workers, outcomes.tolist(), strict=True):
            for stage in range(STAGES):
                row = self._rows.pop((worker, stage), None)
                if row is not None:
                    yield stage, row, outcome


class Recalibrated:
    """A model with recalibrated quantiles.

    The default rate is small because the shipped model is calibrated already: on jobs that it was
    not trained on, 90.0 % of the tasks stay below its 90 % quantile (docs/predictor.md).
    """

    def __init__(self, model: Model, rate: float = 0.002, most: float = 0.3) -> None:
        """Wrap `model`; offsets move by at most `rate` an outcome and never beyond `most`."""
        self._model = model
        self._most = most
        self._tracker = Tracker([[0.0] * len(LEVELS)] * STAGES, rate)
        self._pending = PendingForecasts()

    def predict(self, workers: Sequence[str], tasks: Array) -> Array:
        """Return the model's quantiles, moved, and remember them until the outcome is known."""
        quantiles = self._model.predict(workers, tasks)
        stage = stages(tasks)
        # The model's own quantiles are remembered: offsets are relative to these.
        self._pending.remember(workers, stage, list(quantiles))
        offsets = np.clip(self._tracker.offsets(stage), -self._most, self._most)
        # Offsets of neighbouring levels move independently, so moved quantiles could cross.
        return _above_elapsed(np.maximum.accumulate(quantiles + offsets, axis=1), tasks)

    def learn(self, workers: Sequence[str], tasks: Array, seconds: Array) -> None:
        """Move the offsets by these tasks' outcomes, and have the model learn from them."""
        due = list(self._pending.take(workers, np.log(seconds)))
        if due:
            surprises = np.stack([outcome - predicted for _, predicted, outcome in due])
            self._tracker.learn(np.array([stage for stage, _, _ in due]), surprises)
        self._model.learn(workers, tasks, seconds)


def _above_elapsed(quantiles: Array, tasks: Array) -> Array:
    """Raise quantiles to the time of the latest report: no task ends before it has reported."""
    elapsed = np.where(tasks[:, f.SHARE] > 0, tasks[:, f.SECONDS], 0.0)
    least = np.where(elapsed > 0, np.log(np.maximum(elapsed, 1e-300)), -np.inf)
    return np.maximum(quantiles, least[:, None])
