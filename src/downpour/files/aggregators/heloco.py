"""HeLoCo's correction, which bends a tensor's step toward the momentum before the step counts.

HeLoCo (arXiv 2606.00271) is for asynchronous training with unequal workers and unequal shards,
in which a step may be stale, or serve only one shard. With the step g of a tensor,
the momentum m, the cosine c between them and the confidence a = |g| / (|g| + κ |m|):

    c ≥ 0.2        g stays as it is
    c < 0          g loses part of its component against m: g - β c |g| m/|m|, where
                   β = min(0.5 (-c) a, 0.5)
    between        g turns toward m, and keeps its length: along (1 - λ) g/|g| + λ m/|m|, where
                   λ = min(1, (1 - c) a)

The mode has already weighted g, like the steps that make up the momentum. In each case, the result
is a weighted sum of g and m, so three sums over the tensor decide it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import fsum, sqrt

import numpy as np

from downpour.files.store import Array

_ALIGNED = 0.2
_BRAKE, _BRAKE_MAX = 0.5, 0.5
_CONFIDENCE = 3.0  # κ


@dataclass(frozen=True, slots=True, kw_only=True)
class Correction:
    """The corrected step is `of_gradient` · gradient + `of_momentum` · momentum."""

    of_gradient: float
    of_momentum: float


UNCORRECTED = Correction(of_gradient=1.0, of_momentum=0.0)


def correction(windows: Iterable[tuple[Array, Array]]) -> Correction:
    """Return the correction of a tensor.

    Args:
        windows: Its gradient and its momentum, one window [n] of both after another. We sum in
            float64 within a window, and exactly over windows.
    """
    sums = [(_dot(g, g), _dot(m, m), _dot(g, m)) for g, m in windows]
    step, momentum = sqrt(fsum(g for g, _, _ in sums)), sqrt(fsum(m for _, m, _ in sums))
    return _corrected(step, momentum, fsum(both for _, _, both in sums))


def _corrected(step: float, momentum: float, product: float) -> Correction:
    """Return the correction for the norms of gradient and momentum, and their dot product."""
    scale = step * momentum
    if not scale > 0:  # no momentum yet, or nothing to correct
        return UNCORRECTED
    cosine = min(max(product / scale, -1.0), 1.0)
    confidence = step / (step + _CONFIDENCE * momentum)
    if cosine >= _ALIGNED:
        return UNCORRECTED
    if cosine < 0:
        brake = min(-_BRAKE * cosine * confidence, _BRAKE_MAX)
        return Correction(of_gradient=1.0, of_momentum=-brake * cosine * step / momentum)
    turn = min(1.0, (1 - cosine) * confidence)
    length = sqrt((1 - turn) ** 2 + turn**2 + 2 * turn * (1 - turn) * cosine)
    along = turn * step / (momentum * length)
    return Correction(of_gradient=(1 - turn) / length, of_momentum=along)


def _dot(one: Array, other: Array) -> float:
    # We avoid BLAS, whose sums depend on its threads.
    return float(np.sum(one.astype(np.float64) * other))
