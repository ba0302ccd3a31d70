"""The closed-form fit of the ridge regressions that `predictor.ridge` predicts with."""

from __future__ import annotations

import numpy as np

from downpour.predictor.base import LEVELS, Array
from downpour.predictor.fitting.training_data import TaskSequences
from downpour.predictor.ridge import BEYOND

_PENALTY = 30.0  # in samples: small compared with the tens of thousands of a trace


def fit_ridge(sequences: TaskSequences) -> dict[str, Array]:
    """Fit both regressions in closed form; the quantiles of their residuals are the spread.

    If the traces have no reports of progress, the second regression has nothing to learn from. It
    then extrapolates, and is as unsure as the one at assignment.
    """
    assigned = _fit(*sequences.rows(reported=False))
    inputs, target = sequences.rows(reported=True)
    unreported = {**assigned, "weights": np.zeros_like(assigned["weights"])}
    parts = [assigned, _fit(inputs, target) if len(inputs) else unreported]
    return {name: np.stack([part[name] for part in parts]).astype(np.float32) for name in assigned}


def _fit(inputs: Array, target: Array) -> dict[str, Array]:
    center, scale = inputs.mean(axis=0), np.maximum(inputs.std(axis=0), 1e-3)
    x = np.clip((inputs - center) / scale, -BEYOND, BEYOND).astype(np.float64)
    gram = x.T @ x + _PENALTY * np.eye(x.shape[1])
    weights = np.linalg.solve(gram, x.T @ (target - target.mean()))
    spread = np.quantile(target - x @ weights, LEVELS)
    return {"weights": weights, "center": center, "scale": scale, "spread": spread}
