"""The closed-form fit of the ridge regressions that `predictor.ridge` predicts with."""

from __future__ import annotations

import numpy as np

from downpour.predictor.base import LEVELS, Array
from downpour.predictor.fitting.training_data import TaskSequences
from downpour.predictor.ridge import BEYOND

_PENALTY = 30.0  # in samples: small beside the tens of thousands of a trace


def fit_ridge(sequences: TaskSequences) -> dict[str, Array]:
    """Fit both regressions in closed form; the quantiles of their residuals are the spread."""
    fitted: dict[str, list[Array]] = {"weights": [], "center": [], "scale": [], "spread": []}
    for reported in (False, True):
        inputs, target = sequences.rows(reported=reported)
        center, scale = inputs.mean(axis=0), np.maximum(inputs.std(axis=0), 1e-3)
        x = np.clip((inputs - center) / scale, -BEYOND, BEYOND).astype(np.float64)
        gram = x.T @ x + _PENALTY * np.eye(x.shape[1])
        level = target.mean()
        weights = np.linalg.solve(gram, x.T @ (target - level))
        fitted["weights"].append(weights)
        fitted["center"].append(center)
        fitted["scale"].append(scale)
        fitted["spread"].append(np.quantile(target - x @ weights, LEVELS))
    return {name: np.stack(parts).astype(np.float32) for name, parts in fitted.items()}
