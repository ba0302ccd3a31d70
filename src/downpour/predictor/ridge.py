"""Ridge regression on the inputs, one at assignment and one after reports of progress."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from downpour.predictor.base import LEVELS, Array
from downpour.predictor.learned import Learned
from downpour.predictor.lessons import Lessons

_PENALTY = 30.0
_BEYOND = 3.0  # standard deviations: further out, a straight line is no longer believed


class Ridge(Learned):
    """Linear in the inputs, with quantiles at a fixed distance from the center.

    Arrays for both kinds of prediction, first at assignment, then after reports: `weights`
    (2, inputs), `center`, `scale` (2, inputs) and `spread` (2, 4).
    """

    def __init__(self, arrays: Mapping[str, Array]) -> None:
        """Take what `fit_ridge` found."""
        super().__init__()
        self._arrays = {name: array.astype(np.float64) for name, array in arrays.items()}

    def offsets(self, at: Array, inputs: Array, reported: Array) -> Array:  # noqa: ARG002
        """Return the quantiles of the log of actual over expected time."""
        kind = reported.astype(int)
        scaled = (inputs - self._arrays["center"][kind]) / self._arrays["scale"][kind]
        scaled = np.clip(scaled, -_BEYOND, _BEYOND)
        middle: Array = (scaled * self._arrays["weights"][kind]).sum(axis=1)
        found: Array = middle[:, None] + self._arrays["spread"][kind]
        return found


def fit_ridge(lessons: Lessons) -> dict[str, Array]:
    """Fit both regressions in closed form, and the distances of the quantiles to what is left."""
    found: dict[str, list[Array]] = {"weights": [], "center": [], "scale": [], "spread": []}
    for reported in (False, True):
        inputs, target = lessons.rows(reported=reported)
        center, scale = inputs.mean(axis=0), np.maximum(inputs.std(axis=0), 1e-3)
        x = np.clip((inputs - center) / scale, -_BEYOND, _BEYOND).astype(np.float64)
        gram = x.T @ x + _PENALTY * np.eye(x.shape[1])
        level = target.mean()
        weights = np.linalg.solve(gram, x.T @ (target - level))
        found["weights"].append(weights)
        found["center"].append(center)
        found["scale"].append(scale)
        found["spread"].append(np.quantile(target - x @ weights, LEVELS))
    return {name: np.stack(parts).astype(np.float32) for name, parts in found.items()}
