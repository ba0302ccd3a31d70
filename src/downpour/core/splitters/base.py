"""The interface of all splitters, and the way in which most of them deal examples.

A splitter answers one question: which shard owns each example? It draws random numbers only from
the generator that it gets, and leaves no shard without an example.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Indices = npt.NDArray[np.int64]
Numbers = npt.NDArray[np.integer]
"""Classes or owners of all examples, in few bytes each: there may be billions."""
Labels = npt.NDArray[np.generic]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SplitRequest:
    """The examples to split, and the number of shards.

    `classes` has shape (examples,). It holds the class of each example, numbered 0..K-1 without
    gaps, where K classes occur. A request has at least as many examples as shards. `alpha` is the
    concentration of a Dirichlet split, and None for other splits.
    """

    classes: Numbers
    shards: int
    generator: np.random.Generator
    alpha: float | None = None


Splitter = Callable[[SplitRequest], Numbers]
"""Returns the owners: shape (examples,), each a shard in 0..shards-1, every shard at least once."""


def deal(order: Indices, shards: int) -> Numbers:
    """Deal examples to the shards in turn, in the given order, like cards to players.

    Args:
        order: a permutation of the examples, shape (examples,).
        shards: the number of shards.

    Returns:
        The owners, shape (examples,). In any stretch of `order`, the shards' counts differ by at
        most one.
    """
    owners = np.empty(len(order), dtype=np.int32)
    for shard in range(shards):
        owners[order[shard::shards]] = shard
    return owners


def shuffled_by_class(request: SplitRequest) -> Indices:
    """Return the examples class by class, and in random order within each class."""
    shuffled = request.generator.permutation(len(request.classes))
    return shuffled[np.argsort(request.classes[shuffled], kind="stable")]
