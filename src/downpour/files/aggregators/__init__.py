"""How updates become the next model: rules that weigh, one fold that sums a round, and moves.

To add a rule, write a function in `weights.py`, and register it (`core/families.py`).
"""

from __future__ import annotations

from collections.abc import Mapping

from downpour.core import families
from downpour.files.aggregators.fold import Gathering, fold
from downpour.files.aggregators.moving import Move, Versions, moved, own_after
from downpour.files.aggregators.outer_step import first_state, is_state_of, take_step
from downpour.files.aggregators.passes import Counted, examine
from downpour.files.aggregators.weights import (
    Aggregator,
    Amount,
    Contribution,
    equal_amount,
    samples_amount,
)

AGGREGATORS: Mapping[str, Aggregator] = families.AGGREGATORS

AMOUNTS: Mapping[str, Amount] = {"average": equal_amount, "samples": samples_amount}
"""The rules that sum an update as it arrives; other rules read all updates at the end."""
