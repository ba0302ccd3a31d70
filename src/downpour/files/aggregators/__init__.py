"""How updates become the next model: rules, one fold of a round, and moves.

To add a rule, write a function in `passes.py` if it weighs updates, or a `Statistic` in
`statistics.py` if it looks at their numbers, and register it (`core/families.py`).
"""

from collections.abc import Mapping

from downpour.core import families
from downpour.files.aggregators.additions import Combine
from downpour.files.aggregators.outer_step import first_state, is_state_of, take_step
from downpour.files.aggregators.passes import (
    Aggregator,
    Amount,
    Contribution,
    Counted,
    Weights,
    equal_amount,
    examine,
    samples_amount,
)
from downpour.files.aggregators.statistics import Statistic
from downpour.files.aggregators.versions import Gathering, Move, Versions, fold, moved, own_after

AGGREGATORS: Mapping[str, Aggregator] = families.AGGREGATORS

AMOUNTS: Mapping[str, Amount] = {"average": equal_amount, "samples": samples_amount}
"""The rules that sum an update as it arrives; other rules read all updates at the end."""
