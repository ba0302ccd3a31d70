"""The interface of an aggregator: a pure function from a round's contributions to their weights.

Every rule of this family is a weighted mean, so a rule only says how much each contribution counts;
`fold` reads and sums the files. Weights are float64, sum to one, and do not depend on the order of
the contributions.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from downpour.base.values import PublishedFile


@dataclass(frozen=True, slots=True, kw_only=True)
class Contribution:
    """One shard's part in a round: facts about its training, and the file with its parameters.

    `loss` is the sample-weighted mean of the task's batches.
    """

    shard: int
    samples: int
    loss: float
    file: PublishedFile


Aggregator: TypeAlias = Callable[[Sequence[Contribution]], tuple[float, ...]]

Amount: TypeAlias = Callable[[Contribution], float]
"""Returns a contribution's amount without the others; weights are shares of the total."""


def shares(amounts: Sequence[float]) -> tuple[float, ...]:
    """Return each amount divided by their sum; equal shares if all amounts are zero.

    Raises:
        ValueError: there are no amounts.
    """
    if not amounts:
        raise ValueError("nothing to aggregate")
    largest = max(amounts)
    if largest == 0:
        return (1 / len(amounts),) * len(amounts)
    # Scale by the largest first, so that the sum of huge amounts stays finite.
    total = math.fsum(amount / largest for amount in amounts)
    return tuple(amount / largest / total for amount in amounts)
