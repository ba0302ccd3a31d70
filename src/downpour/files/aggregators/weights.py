"""How much each update counts.

Every rule of this family is a weighted mean, so a rule only says how much each contribution counts;
`fold.py` reads and sums the files. Weights are float64, sum to one, and do not depend on the order
of the contributions.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from downpour.base.errors import UpdatesRefused
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
    """Return each amount divided by their sum; equal shares if all amounts are zero."""
    if not amounts:
        raise ValueError("nothing to aggregate")
    largest = max(amounts)
    if largest == 0:
        return (1 / len(amounts),) * len(amounts)
    # Scale by the largest first, so that the sum of huge amounts stays finite.
    total = math.fsum(amount / largest for amount in amounts)
    return tuple(amount / largest / total for amount in amounts)


def equal_amount(contribution: Contribution) -> float:
    """Return how much each contribution counts."""
    del contribution
    return 1.0


def equal_weights(contributions: Sequence[Contribution]) -> tuple[float, ...]:
    """Return equal weights: the plain mean, Σ w_i / N."""
    return shares([equal_amount(contribution) for contribution in contributions])


def loss_weights(contributions: Sequence[Contribution]) -> tuple[float, ...]:
    """Weigh each contribution by its training loss, which favors shards that fare worse.

    The mean is Σ l_i w_i / Σ l_i, an idea of the ECE751 report. If all losses are zero, all weights
    are equal. A negative loss has no meaning as a weight, so we refuse it, as well as one that is
    not finite.
    """
    refused = {
        contribution.shard: f"loss {contribution.loss} cannot be a weight"
        for contribution in contributions
        if not (math.isfinite(contribution.loss) and contribution.loss >= 0)
    }
    if refused:
        raise UpdatesRefused(refused)
    return shares([contribution.loss for contribution in contributions])


def samples_amount(contribution: Contribution) -> float:
    """Return how much a contribution counts."""
    return float(contribution.samples)


def samples_weights(contributions: Sequence[Contribution]) -> tuple[float, ...]:
    """Weigh each contribution by the examples that its shard holds: Σ n_i w_i / Σ n_i.

    This is FedAvg's rule (McMahan et al. 2017, https://arxiv.org/abs/1602.05629, algorithm 1).
    """
    return shares([samples_amount(contribution) for contribution in contributions])


def first_weights(contributions: Sequence[Contribution]) -> tuple[float, ...]:
    """Give the lowest shard all the weight, and discard the other shards' work.

    We have this rule because the code published with the ECE751 report did this: its loop computed
    the mean and never stored it.
    """
    lowest = min((contribution.shard for contribution in contributions), default=0)
    return shares([float(contribution.shard == lowest) for contribution in contributions])
