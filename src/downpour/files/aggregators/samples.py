"""The mean weighted by the examples each shard holds: Σ n_i w_i / Σ n_i.

This is FedAvg's rule (McMahan et al. 2017, https://arxiv.org/abs/1602.05629, algorithm 1).
"""

from __future__ import annotations

from collections.abc import Sequence

from downpour.files.aggregators.base import Contribution, shares


def amount(contribution: Contribution) -> float:
    """Return how much a contribution counts."""
    return float(contribution.samples)


def weights(contributions: Sequence[Contribution]) -> tuple[float, ...]:
    """Weigh each contribution by its samples."""
    return shares([amount(contribution) for contribution in contributions])
