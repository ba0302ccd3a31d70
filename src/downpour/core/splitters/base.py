"""The interface of all splitters, and the way of dealing examples that most of them use.

A splitter answers one question: which shard owns each example? It may draw from the generator it
is handed and from nothing else, and leaves no shard without an example.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Indices = npt.NDArray[np.int64]
Labels = npt.NDArray[np.generic]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SplitRequest:
    """The examples to split, and into how many shards.

    `classes` has shape (examples,): the class of each, numbered 0..K-1 without gaps, K being the
    classes that occur. There are at least as many examples as shards. `alpha` is the
    concentration of a Dirichlet split, None for the others.
    """

    classes: Indices
    shards: int
    generator: np.random.Generator
    alpha: float | None = None


Splitter = Callable[[SplitRequest], Indices]
"""Returns the owners: shape (examples,), each a shard in 0..shards-1, every shard at least once."""


def deal(order: Indices, shards: int) -> Indices:
    """Deal examples round the shards in the order given, as one deals cards.

    Args:
        order: a permutation of the examples, shape (examples,).
        shards: how many shards to deal to.

    Returns:
        The owners, shape (examples,). Any stretch of `order` is spread over the shards with counts
        that differ by at most one.
    """
    owners = np.empty(len(order), dtype=np.int64)
    owners[order] = np.arange(len(order), dtype=np.int64) % shards
    return owners


def shuffled_by_class(request: SplitRequest) -> Indices:
    """Lay the classes end to end, each shuffled within itself; a permutation of the examples."""
    shuffled = request.generator.permutation(len(request.classes))
    return shuffled[np.argsort(request.classes[shuffled], kind="stable")]
