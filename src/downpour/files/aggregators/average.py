"""The plain mean of all shards' parameters, with equal weights: Σ w_i / N."""

from __future__ import annotations

from collections.abc import Sequence

from downpour.files.aggregators.base import Contribution, shares


def amount(contribution: Contribution) -> float:
    """Return how much each contribution counts."""
    del contribution
    return 1.0


def weights(contributions: Sequence[Contribution]) -> tuple[float, ...]:
    """Weigh all contributions equally."""
    return shares([amount(contribution) for contribution in contributions])
