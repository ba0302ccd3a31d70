"""How updates become the next model: rules, one fold of a round, and moves.

To add a rule, write a function in `passes.py` if it weighs updates, or a `Statistic` in
`statistics.py` if it looks at their numbers, and register it (`core/families.py`).
"""

import math
from collections.abc import Mapping, Sequence
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
from downpour.files.aggregators.statistics import Statistic
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
