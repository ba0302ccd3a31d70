"""The closed-form fit of the ridge regressions that `predictor.ridge` predicts with."""

from __future__ import annotations

import numpy as np

from downpour.predictor.base import LEVELS, Array
from downpour.predictor.fitting.training_data import TaskSequences
from downpour.predictor.ridge import BEYOND

_PENALTY = 30.0


def fit_ridge(sequences: TaskSequences) -> dict[str, Array]:
    """Fit both regressions in closed form, and the distances of the quantiles to what is left."""
    found: dict[str, list[Array]] = {"weights": [], "center": [], "scale": [], "spread": []}
    for reported in (False, True):
        inputs, target = sequences.rows(reported=reported)
        center, scale = inputs.mean(axis=0), np.maximum(inputs.std(axis=0), 1e-3)
        x = np.clip((inputs - center) / scale, -BEYOND, BEYOND).astype(np.float64)
        gram = x.T @ x + _PENALTY * np.eye(x.shape[1])
        level = target.mean()
        weights = np.linalg.solve(gram, x.T @ (target - level))
        found["weights"].append(weights)
        found["center"].append(center)
        found["scale"].append(scale)
        found["spread"].append(np.quantile(target - x @ weights, LEVELS))
    return {name: np.stack(parts).astype(np.float32) for name, parts in found.items()}
