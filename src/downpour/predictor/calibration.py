"""Recalibration: moves predicted quantiles until the promised share of outcomes is below them.

Every outcome moves the offset of each level a little. It moves up by the level if the outcome was
above the quantile, and down by one minus the level if it was below. An offset comes to rest when
exactly that share of outcomes stays below. Adaptive conformal inference (Gibbs and Candès 2021)
moves a quantile's level in this way. We move the quantile itself (Angelopoulos, Candès and
Tibshirani 2023, section 2.1). The method assumes nothing about the outcomes: they need neither
repeat nor be independent. Predictions at assignment, after early reports and after late reports of
progress have separate offsets.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import isnan

import numpy as np

from downpour.predictor import features as f
from downpour.predictor.base import LEVELS, Array, Model
from downpour.predictor.histories import WORKERS_MAX

STAGES = 3
_LATE = 0.375  # halfway between the traces' reports at 25 and 50 %
# If a worker leaves in the middle of a task, its forecasts stay here without an outcome.
_PENDING_MAX = 20_000
_LEVELS = np.array(LEVELS)
# Steps, in log seconds per outcome, chosen on half of the traces' jobs
# (docs/concepts/forecasts.md). `_OWN_STEP` is the largest step whose pinball loss on those jobs
# does not exceed that of shared offsets alone.
_FIRST_STEP, _SHRINK = 0.02, 0.6
# Steps shrink as if this many outcomes had come already. In a job's first round the quantiles are
# wide, and longer steps would make the quantiles of the next tasks too narrow.
_HEAD_START = 100
_OWN_STEP = 0.002
# Few outcomes fall beyond the outer quantiles, so those offsets take longer steps.
_REACH = np.array([2.0, 1.0, 2.0, 5.0])


def stages(tasks: Array) -> Array:
    """Return 0 for tasks at assignment, 1 and 2 for early and late reports of progress."""
    share = tasks[:, f.SHARE]  # NaN is above nothing
    return (share > 0).astype(int) + (share > _LATE)


def _pushes(surprises: Array, offsets: Array) -> Array:
    """Return plus the level for an outcome above, and minus one minus the level for one below."""
    pushes: Array = (surprises > offsets) - (1 - _LEVELS)
    return pushes


class Tracker:
    """Offsets that follow the outcomes, for the quantiles of logarithms, by stage."""

    def __init__(self, start: Sequence[Sequence[float]], rate: float) -> None:
        """Begin with the offsets `start` (stages, 4); `rate` is how far one outcome moves them."""
        self._offsets = np.array(start, dtype=float)
        self._rate = rate

    def offsets(self, stage: Array) -> Array:
        """Return the offsets (rows, 4) for predictions at these stages."""
        return self._offsets[stage]

    def learn(self, stage: Array, surprises: Array) -> None:
        """Take in surprises (rows, 4): the outcomes minus the quantiles without offsets."""
        for place in np.unique(stage):
            pushes = _pushes(surprises[stage == place], self._offsets[place])
            self._offsets[place] += self._rate * pushes.sum(axis=0)


class PendingForecasts:
    """Forecasts of tasks whose outcome we don't know yet, by worker and stage."""

    def __init__(self) -> None:
        self._rows: dict[tuple[str, int], tuple[float, Array]] = {}

    def remember(self, workers: Sequence[str], tasks: Array, rows: Sequence[Array]) -> None:
        """Remember forecasts; each replaces the worker's earlier one of the same stage.

        If a worker's running task has reported, a forecast at assignment is about the worker's next
        task. We don't keep that one, because the next outcome belongs to the running task.
        """
        stage = stages(tasks).tolist()
        busy = {worker for worker, place in zip(workers, stage, strict=True) if place}
        sizes = np.log(tasks[:, f.SAMPLES]).tolist()
        for worker, place, size, row in zip(workers, stage, sizes, rows, strict=True):
            if place or worker not in busy:
                self._rows[worker, place] = (size, row)
        while len(self._rows) > _PENDING_MAX:
            del self._rows[next(iter(self._rows))]

    def take(
        self, workers: Sequence[str], tasks: Array, seconds: Array
    ) -> tuple[list[str], Array, Array]:
        """Return workers, stages and surprises of finished tasks, and forget their forecasts.

        A surprise is the log of the seconds minus the forecast. If the forecast was for a task of
        another size, we scale it to this task by the time per sample.
        """
        names, stage, outcomes, rows = [], [], [], []
        ends, sizes = np.log(seconds).tolist(), np.log(tasks[:, f.SAMPLES]).tolist()
        for worker, end, size in zip(workers, ends, sizes, strict=True):
            for place in range(STAGES):
                if (forecast := self._rows.pop((worker, place), None)) is not None:
                    names.append(worker)
                    stage.append(place)
                    grown = size - forecast[0]
                    outcomes.append(end if isnan(grown) else end - grown)
                    rows.append(forecast[1])
        predicted = np.array(rows)
        ahead = np.array(outcomes).reshape(-1, *[1] * (predicted.ndim - 1))
        return names, np.array(stage, dtype=int), ahead - predicted


class Corrections:
    """Offsets for a cluster, and each worker's own offsets on top of them.

    A new worker starts with the cluster's offsets. These settle, because their steps shrink with
    the number of outcomes t, as t^(-1/2 - ε) (Angelopoulos, Barber and Bates 2024), with ε = 0.1. A
    worker's own steps never shrink, so its offsets follow it when its pace changes.
    """

    def __init__(self, most: float) -> None:
        """Begin at 0; neither part may move farther than `most`, in log seconds."""
        self._most = most
        self._shared = np.zeros((STAGES, len(LEVELS)))
        self._counts = np.zeros(STAGES)
        self._own: dict[str, Array] = {}  # (stages, 4) each, in the order of their last outcomes

    def of(self, workers: Sequence[str], stage: Array) -> Array:
        """Return the offsets (rows, 4) for predictions of these workers at these stages."""
        return self._shared[stage] + self._own_of(workers, stage)

    def learn(self, workers: Sequence[str], stage: Array, surprises: Array) -> None:
        """Take in surprises (rows, 4): the outcomes minus the quantiles without offsets."""
        own = self._own_of(workers, stage)
        moves = _OWN_STEP * _REACH * _pushes(surprises, self._shared[stage] + own)
        moved = np.clip(own + moves, -self._most, self._most)
        for worker, place, row in zip(workers, stage.tolist(), moved, strict=True):
            offsets = self._own.pop(worker, None)
            self._own[worker] = np.zeros_like(self._shared) if offsets is None else offsets
            self._own[worker][place] = row
        while len(self._own) > WORKERS_MAX:
            del self._own[next(iter(self._own))]
        for place in np.unique(stage):
            pushes = _pushes(surprises[stage == place], self._shared[place])
            self._counts[place] += len(pushes)
            step = _FIRST_STEP * (_HEAD_START + self._counts[place]) ** -_SHRINK * _REACH
            shared = self._shared[place] + step * pushes.sum(axis=0)
            self._shared[place] = np.clip(shared, -self._most, self._most)

    def _own_of(self, workers: Sequence[str], stage: Array) -> Array:
        offsets = np.zeros((len(workers), len(LEVELS)))
        for row, (worker, place) in enumerate(zip(workers, stage.tolist(), strict=True)):
            if worker in self._own:
                offsets[row] = self._own[worker][place]
        return offsets


class Recalibrated:
    """A model with recalibrated quantiles.

    docs/concepts/forecasts.md compares this with other methods, on machines that the model was not
    trained on.
    """

    def __init__(self, model: Model, most: float = 0.3) -> None:
        """Wrap `model`; move each of its quantiles by at most `most`, in log seconds."""
        self._model = model
        self._most = most
        self._corrections = Corrections(most)
        self._pending = PendingForecasts()

    def predict(self, workers: Sequence[str], tasks: Array) -> Array:
        """Return the model's quantiles plus offsets; keep the forecasts until their outcomes."""
        quantiles = self._model.predict(workers, tasks)
        stage = stages(tasks)
        # We remember the model's own quantiles, because the offsets are relative to these.
        self._pending.remember(workers, tasks, list(quantiles))
        offsets = np.clip(self._corrections.of(workers, stage), -self._most, self._most)
        # Offsets of neighboring levels move independently, so moved quantiles could cross.
        return _above_elapsed(np.maximum.accumulate(quantiles + offsets, axis=1), tasks)

    def learn(self, workers: Sequence[str], tasks: Array, seconds: Array) -> None:
        """Move the offsets by these tasks' outcomes, and let the model learn from them."""
        names, stage, surprises = self._pending.take(workers, tasks, seconds)
        if names:
            self._corrections.learn(names, stage, surprises)
        self._model.learn(workers, tasks, seconds)


def _above_elapsed(quantiles: Array, tasks: Array) -> Array:
    """Raise quantiles to the time of the latest report: no task ends before its report."""
    elapsed = np.where(tasks[:, f.SHARE] > 0, tasks[:, f.SECONDS], 0.0)
    least = np.where(elapsed > 0, np.log(np.maximum(elapsed, 1e-300)), -np.inf)
    return np.maximum(quantiles, least[:, None])
