"""How updates become the next model: rules that weigh, one fold that sums a round, and moves.

To add a rule, write a file with a function `weights`, and register it (`core/families.py`).
"""

from __future__ import annotations

from collections.abc import Mapping

from downpour.core import families
from downpour.files.aggregators.base import Aggregator, Contribution
from downpour.files.aggregators.fold import fold
from downpour.files.aggregators.moving import Move, moved, own_after
from downpour.files.aggregators.outer_step import first_state, is_state_of, take_step
from downpour.files.aggregators.versions import Versions

AGGREGATORS: Mapping[str, Aggregator] = families.AGGREGATORS

__all__ = [
    "AGGREGATORS",
    "Aggregator",
    "Contribution",
    "Move",
    "Versions",
    "first_state",
    "fold",
    "is_state_of",
    "moved",
    "own_after",
    "take_step",
]
