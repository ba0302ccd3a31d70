"""Ridge regression on the inputs, one at assignment and one after reports of progress."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from downpour.predictor.base import Array
from downpour.predictor.learned import Learned

BEYOND = 3.0  # standard deviations: further out, a straight line does not hold


class Ridge(Learned):
    """Linear in the inputs, with quantiles at a fixed distance from the center.

    Arrays for both kinds of prediction, first at assignment, then after reports: `weights`,
    `center` and `scale` of shape `(2, inputs)`, and `spread` of shape `(2, 4)`.
    """

    def __init__(self, arrays: Mapping[str, Array]) -> None:
        """Take the arrays of a fit (`fitting.ridge_fit`)."""
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
