"""An LSTM that all workers share, with one state per worker; predicts in plain numpy.

A finished task is an event that moves its worker's state. A prediction passes the state and the
inputs of the task through one of two small networks: one for tasks at assignment, one for tasks
that have reported progress. Several such nets, trained from different seeds, answer with the mean
of their quantiles. A network outputs the median and the distances to the other quantiles.
Distances cannot be negative, so quantiles cannot cross. `fitting.lstm_training` makes the weights,
which do not change while a job runs. When we fine-tuned them on the run at hand, predictions got
worse for about the first eighty rounds. We use numpy, so that predicting need not import torch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from downpour.predictor.base import MEDIAN, Array
from downpour.predictor.histories import EVENTS, INPUTS
from downpour.predictor.learned import Learned

# Inputs that are logarithms of ratios: small differences matter as well as large ones.
RATIOS = tuple(
    INPUTS.index(name)
    for name in (
        "fast", "middle", "last", "before_last", "tail", "head", "drift", "lowest", "median",
        "highest", "cluster", "cluster_last", "alike", "alike_lately", "size", "alike_at_start",
        "pace", "recent_pace", "lately_faster", "pace_alike", "alike_now",
    )
)  # fmt: skip
# The network also gets each such ratio as `sign(r) log(1 + |r| / 0.03) / 2`, which is steep near 0.
# It matters whether a worker is 1 or 4 % slower, not only whether it is twice as slow.
RATIO_UNIT, RATIO_SCALE = 0.03, 0.5
FAR = 6.0  # standard deviations: inputs beyond all training inputs are moved to this distance
KINDS = ("assigned", "reported")


def shapes(nets: int, units: int, wide: int, narrow: int) -> dict[str, tuple[int, ...]]:
    """Return the shape of every array of the network."""
    seen = len(INPUTS) + len(RATIOS) + units
    by_name: dict[str, tuple[int, ...]] = {
        "inputs.center": (len(INPUTS),),
        "inputs.scale": (len(INPUTS),),
        "events.center": (len(EVENTS),),
        "events.scale": (len(EVENTS),),
        "cell.event": (nets, len(EVENTS), 4 * units),
        "cell.state": (nets, units, 4 * units),
        "cell.bias": (nets, 1, 4 * units),
    }
    for kind in KINDS:
        by_name[f"{kind}.wide"] = (nets, seen, wide)
        by_name[f"{kind}.wide_bias"] = (nets, 1, wide)
        by_name[f"{kind}.narrow"] = (nets, wide, narrow)
        by_name[f"{kind}.narrow_bias"] = (nets, 1, narrow)
        by_name[f"{kind}.out"] = (nets, narrow, 4)
        by_name[f"{kind}.out_bias"] = (nets, 1, 4)
        by_name[f"{kind}.skip"] = (nets, seen, 4)
    return by_name


class Lstm(Learned):
    """Predicts with trained nets; `arrays` have the shapes that `shapes` returns."""

    def __init__(self, arrays: Mapping[str, Array]) -> None:
        """Take the nets' weights."""
        super().__init__()
        self._arrays = {name: array.astype(np.float32) for name, array in arrays.items()}
        nets, units, _ = self._arrays["cell.state"].shape
        self._states = np.zeros((2, nets, 16, units), np.float32)  # hidden, cell

    def offsets(self, at: Array, inputs: Array, reported: Array) -> Array:
        """Return the quantiles of the log of actual over expected time."""
        self._grow()
        seen = self._seen(at, inputs)
        if reported.all() or not reported.any():  # saves copying rows
            return self._quantiles(KINDS[int(reported[0])], seen)
        quantiles = np.empty((len(at), 4))
        for kind, rows in zip(KINDS, (~reported, reported), strict=True):
            quantiles[rows] = self._quantiles(kind, seen[:, rows])
        return quantiles

    def advance_states(self, at: Array, events: Array, fresh: Array) -> None:
        """Move the states of the workers whose tasks have finished."""
        self._grow()
        self._states[:, :, at[fresh]] = 0  # a forgotten worker's number may have gone to a new one
        hidden, cell = self._states[:, :, at]
        a = self._arrays
        scaled = (events - a["events.center"]) / a["events.scale"]
        gates = scaled @ a["cell.event"] + hidden @ a["cell.state"] + a["cell.bias"]
        keep, forget, new, show = np.split(gates, 4, axis=-1)
        cell = _sigmoid(forget) * cell + _sigmoid(keep) * np.tanh(new)
        self._states[0][:, at], self._states[1][:, at] = _sigmoid(show) * np.tanh(cell), cell

    def _seen(self, at: Array, inputs: Array) -> Array:
        """Return the networks' inputs: (nets, rows, inputs and ratios and hidden state)."""
        a = self._arrays
        scaled = np.clip((inputs - a["inputs.center"]) / a["inputs.scale"], -FAR, FAR)
        ratios = inputs[:, RATIOS]
        fine = np.sign(ratios) * np.log1p(np.abs(ratios) / RATIO_UNIT) * RATIO_SCALE
        hidden = self._states[0][:, at]
        both = np.concatenate([scaled, fine], axis=1)
        return np.concatenate([np.broadcast_to(both, (len(hidden), *both.shape)), hidden], axis=2)

    def _quantiles(self, kind: str, seen: Array) -> Array:
        part = {name: self._arrays[f"{kind}.{name}"] for name in _PARTS}
        wide = _silu(seen @ part["wide"] + part["wide_bias"])
        narrow = _silu(wide @ part["narrow"] + part["narrow_bias"])
        raw = narrow @ part["out"] + part["out_bias"] + seen @ part["skip"]
        mean: Array = spread_out(raw).mean(axis=0).astype(np.float64)
        return mean

    def _grow(self) -> None:
        """Make room for every worker's state, doubling it so that we rarely copy."""
        if (missing := len(self._histories) - self._states.shape[2]) > 0:
            more = max(missing, self._states.shape[2])
            self._states = np.pad(self._states, [(0, 0), (0, 0), (0, more), (0, 0)])


_PARTS: Sequence[str] = (
    "wide", "wide_bias", "narrow", "narrow_bias", "out", "out_bias", "skip",
)  # fmt: skip


def spread_out(raw: Array) -> Array:
    """Return quantiles from a network's outputs: a median, and distances away from it."""
    away = np.logaddexp(0, raw)
    middle = raw[..., MEDIAN]
    upper = middle + away[..., 2]
    parts = [middle - away[..., 0], middle, upper, upper + away[..., 3]]
    return np.stack(parts, axis=-1)


def _sigmoid(x: Array) -> Array:
    # The hyperbolic tangent never overflows, unlike exp(-x) for large negative x.
    return 0.5 * (np.tanh(0.5 * x) + 1)


def _silu(x: Array) -> Array:
    return x * _sigmoid(x)
