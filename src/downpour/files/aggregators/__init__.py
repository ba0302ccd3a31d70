"""How updates become the next model: rules that weigh, one fold that sums a round, and moves.

To add a rule, write a function in `passes.py`, and register it (`core/families.py`).
"""

from __future__ import annotations

from collections.abc import Mapping

from downpour.core import families
from downpour.files.aggregators.outer_step import first_state, is_state_of, take_step
from downpour.files.aggregators.passes import (
    Aggregator,
    Amount,
    Contribution,
    Counted,
    equal_amount,
    examine,
    samples_amount,
)
from downpour.files.aggregators.versions import Gathering, Move, Versions, fold, moved, own_after

AGGREGATORS: Mapping[str, Aggregator] = families.AGGREGATORS

AMOUNTS: Mapping[str, Amount] = {"average": equal_amount, "samples": samples_amount}
"""The rules that sum an update as it arrives; other rules read all updates at the end."""
