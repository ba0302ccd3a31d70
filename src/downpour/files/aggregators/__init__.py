"""How updates become the next model: rules, one fold of a round, and moves.

A weighted mean follows every update, so one that is far off takes the model anywhere. The
statistics below, the median and the mean without the extremes, decide each number of the model
alone, by its place among the updates. That bounds what a few of them can do (Yin et al. 2018,
"Byzantine-Robust Distributed Learning", ICML).

To add a rule, write a function in `passes.py` if it weighs updates, or a `Statistic` here if it
looks at their numbers, and register it (`core/families.py`).
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from downpour.base.errors import SpecError
from downpour.core import families
from downpour.files.aggregators.additions import Combine
from downpour.files.aggregators.outer_step import first_state, is_state_of, take_step
from downpour.files.aggregators.passes import (
    Aggregator,
    ByAmount,
    Contribution,
    Counted,
    Weights,
    examine,
)
from downpour.files.aggregators.versions import Gathering, Move, Versions, fold, moved, own_after
from downpour.files.store import Array

AGGREGATORS: Mapping[str, Aggregator] = families.AGGREGATORS


def weigh(rule: str, contributions: Sequence[Contribution]) -> Weights | Combine:
    """Apply the aggregator of that name, and check its results: a package may have brought it."""
    weights: Any = AGGREGATORS[rule](contributions)
    if callable(weights):
        return partial(_combined, rule, weights)
    if not isinstance(weights, tuple | list | np.ndarray):
        kind = type(weights).__name__
        accepted = f"must return a tuple of weights, or a function, and it returned a {kind}"
        raise SpecError("aggregate", rule, accepted)
    if len(weights) != len(contributions) or not abs(math.fsum(weights) - 1) <= 1e-9:
        accepted = f"its {len(contributions)} weights must sum to 1, but they are {[*weights]}"
        raise SpecError("aggregate", rule, accepted)
    return tuple(weights)


def _combined(rule: str, combine: Combine, differences: Array) -> Array:
    combined, wanted = np.asarray(combine(differences)), differences.shape[1:]
    if combined.shape != wanted:
        accepted = f"must return an array of shape {wanted}, and it returned {combined.shape}"
        raise SpecError("aggregate", rule, accepted)
    return combined


@dataclass(frozen=True, slots=True, kw_only=True)
class Statistic:
    """An aggregator that sees the updates themselves, a piece of a tensor at a time.

    `combine` gets the differences x0 - x of n updates x from the model x0 of their round, as floats
    [n, k] in the order of the shards. It returns the difference [k] of the next model, and may
    change its argument. Pieces have any length, so it must treat each column alone. A round's only
    update counts as it is. A spec needs at least `least` updates in a round. Asynchronous modes,
    which have no rounds, refuse a statistic.
    """

    combine: Combine
    least: int = 1

    def __call__(self, contributions: Sequence[Contribution]) -> Weights | Combine:
        """Return the function for some updates; the weight of a single one."""
        if not contributions:
            raise ValueError("nothing to aggregate")
        return (1.0,) if len(contributions) == 1 else self.combine


def _middle(differences: Array) -> Array:
    return _mean_within(differences, (len(differences) - 1) // 2)


MEDIAN = Statistic(combine=_middle)
"""The middle one of an odd number of updates, and the mean of the middle two of an even number."""


def trimmed_mean(share: float) -> Statistic:
    """Return the mean without that share of the updates at either end, but at least one."""
    return Statistic(combine=partial(_trimmed, share), least=3)


def _trimmed(share: float, differences: Array) -> Array:
    count = len(differences)
    trimmed = max(1, int(share * count + 1e-9))  # 0.29 of 100 are 29
    # If a policy or a mode leaves two updates, there are no extremes.
    return _mean_within(differences, min(trimmed, (count - 1) // 2))


_EXCHANGES_MAX = 64
"""Measured: from about here on, sorting the columns is faster than twice as many exchanges."""


def _mean_within(differences: Array, trimmed: int) -> Array:
    """Return the mean of each column without its `trimmed` lowest and highest numbers."""
    first, last = 0, len(differences) - 1
    rows = list(differences)
    if trimmed * (len(rows) - trimmed) > _EXCHANGES_MAX:
        differences.sort(axis=0)
        first, last = trimmed, last - trimmed
    else:
        spare = np.empty_like(rows[0])
        for _ in range(trimmed):
            for row in [*range(first, last), *range(last - 2, first - 1, -1)]:
                np.minimum(rows[row], rows[row + 1], out=spare)
                np.maximum(rows[row], rows[row + 1], out=rows[row + 1])
                rows[row], spare = spare, rows[row]
            first, last = first + 1, last - 1
    total: Array = rows[first]
    for row in rows[first + 1 : last + 1]:
        total += row
    total /= last + 1 - first
    return total
