"""Holds out training examples: a share of each class, drawn with the seed."""

from __future__ import annotations

import numpy as np

from downpour.base.errors import SpecError
from downpour.core.splitters.base import Indices, Labels


def hold_out(labels: Labels | None, count: int, share: float, seed: int) -> tuple[Indices, Indices]:
    """Divide the examples `0..count-1` into the ones that stay and the held-out ones.

    Args:
        labels: shape (count,), one class per example; None if examples have no classes.
        count: how many examples there are.
        share: the part to hold out, above 0 and below 1; exact for each class to within one.
        seed: the seed of the choice.

    Returns:
        Both parts, as sorted int64 indices.

    Raises:
        SpecError: one of the parts would be empty.
    """
    # The second number makes this draw differ from the split, which uses the seed alone.
    order = np.random.default_rng((seed, 1)).permutation(count).astype(np.int64, copy=False)
    if labels is not None:
        order = order[np.argsort(labels[order], kind="stable")]
    # With the classes end to end, we take one of every 1 / share examples.
    is_held = np.diff(np.floor(np.arange(count + 1) * share)) > 0
    stay, held = np.sort(order[~is_held]), np.sort(order[is_held])
    if not len(held) or not len(stay):
        accepted = f"holds out {len(held)} of {count} training examples, but both parts need some"
        raise SpecError("validation", share, accepted)
    return stay, held
