"""Gradient-boosted trees on the inputs: one ensemble per quantile, at assignment and later.

We fit them where we use them and never store them, because scikit-learn stores trees only as
pickles.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np

from downpour.predictor.base import LEVELS, MEDIAN, Array
from downpour.predictor.fitting.training_data import TaskSequences
from downpour.predictor.learned import Learned

Ensembles: TypeAlias = list[list[Any]]
"""For each kind of prediction, one fitted ensemble per quantile."""

_ROWS_MAX = 120_000  # from more rows, we draw a sample
_OTHERS = 0.4  # the share of the median's iterations that the other, less important quantiles get


class Trees(Learned):
    """Predicts with fitted ensembles: four quantiles for each kind of prediction."""

    def __init__(self, ensembles: Ensembles) -> None:
        """Take the result of `fit_trees`."""
        super().__init__()
        self._ensembles = ensembles
        self._threads = _threads()

    def offsets(self, at: Array, inputs: Array, reported: Array) -> Array:  # noqa: ARG002
        """Return the quantiles of the log of actual over expected time."""
        quantiles = np.zeros((len(inputs), len(LEVELS)))
        with self._threads.limit(limits=1):
            for kind in np.unique(reported):
                here = reported == kind
                parts = [ensemble.predict(inputs[here]) for ensemble in self._ensembles[int(kind)]]
                # Each quantile has its own trees, so they may cross; sorting never adds error.
                quantiles[here] = np.sort(np.stack(parts, axis=1), axis=1)
        return quantiles


def fit_trees(
    sequences: TaskSequences,
    *,
    iterations: int = 200,
    seed: int = 0,
    step: Callable[[], None] = lambda: None,
) -> Ensembles:
    """Fit all ensembles; call `step` after each of the eight."""
    from sklearn.ensemble import HistGradientBoostingRegressor

    ensembles: Ensembles = []
    for reported in (False, True):
        inputs, target = sequences.rows(reported=reported)
        if len(target) > _ROWS_MAX:
            picked = np.random.default_rng(seed).choice(len(target), _ROWS_MAX, replace=False)
            inputs, target = inputs[picked], target[picked]
        ensembles.append([])
        for place, level in enumerate(LEVELS):
            is_median = place == MEDIAN
            ensemble = HistGradientBoostingRegressor(
                loss="quantile",
                quantile=level,
                max_iter=iterations if is_median else int(iterations * _OTHERS),
                learning_rate=0.07 if is_median else 0.12,
                min_samples_leaf=40,
                early_stopping=False,
                random_state=seed,
            )
            with _threads().limit(limits=1):
                ensembles[-1].append(ensemble.fit(inputs, target))
            step()
    return ensembles


def _threads() -> Any:
    """Return a controller of scikit-learn's threads, which spin if they share cores."""
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController()
