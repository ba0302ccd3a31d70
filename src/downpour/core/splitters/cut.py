"""The effect of a split on the training data: the classes in each shard, and how far shards differ.

The distance of a shard is the total variation distance between its class shares and those of all
shards together: half the sum, over the classes, of the absolute differences. 0 means the same
mixture of classes. The distance never reaches 1, because a shard is itself a part of all shards.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from downpour.core.spec import Spec
from downpour.core.splitters import divide
from downpour.core.splitters.base import Indices, Labels

Shares = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ShardCounts:
    """How many examples each shard has, and how many of each class.

    Attributes:
        split: the split's name in a spec.
        sizes: shape (shards,), none 0.
        by_class: shape (shards, classes); no classes if examples have none.
        held_out: how many examples the split holds out for validation.
    """

    split: str
    sizes: Indices
    by_class: Indices
    held_out: int

    @property
    def classes(self) -> int:
        """How many classes the dataset has; 0 if examples have none."""
        return int(self.by_class.shape[1])

    @property
    def unevenness(self) -> float:
        """The size of the largest shard over that of the smallest, at least 1."""
        return float(self.sizes.max() / self.sizes.min())

    @property
    def classes_held(self) -> Indices:
        """The number of classes that occur in each shard, shape (shards,)."""
        return np.asarray(np.count_nonzero(self.by_class, axis=1), np.int64)

    @property
    def largest_shares(self) -> Shares:
        """The share of each shard's most frequent class, above 0 and at most 1; shape (shards,)."""
        return np.asarray(self.by_class.max(axis=1) / self.sizes, np.float64)

    @property
    def distances(self) -> Shares:
        """The total variation distance of each shard from all shards together, shape (shards,)."""
        everything = self.by_class.sum(axis=0) / self.sizes.sum()
        shares = self.by_class / self.sizes[:, np.newaxis]
        return np.asarray(np.abs(shares - everything).sum(axis=1) / 2, np.float64)

    @property
    def mean_distance(self) -> float:
        """The mean of `distances`; large and small shards count the same."""
        return float(self.distances.mean())


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SplitCut(ShardCounts):
    """The shards that a split makes: the indices of each shard's examples, and their counts."""

    shards: tuple[Indices, ...]


def count_classes(shards: Sequence[Indices], labels: Labels | None, classes: int) -> Indices:
    """Count each shard's examples of each class.

    Args:
        shards: the indices of each shard's examples.
        labels: shape (count,), the class of each example, in 0..classes-1; None if there are none.
        classes: how many classes the dataset has.

    Returns:
        Shape (shards, classes); (shards, 0) without labels.
    """
    if labels is None:
        return np.empty((len(shards), 0), np.int64)
    return np.array([np.bincount(labels[one], minlength=classes) for one in shards], np.int64)


def cut(spec: Spec, labels: Labels | None, count: int, classes: int, shards: int) -> SplitCut:
    """Cut training examples by `divide`, as the manager does when it prepares an experiment.

    Args:
        spec: says how to cut.
        labels: shape (count,), the class of each example, in 0..classes-1; None if there are none.
        count: how many examples there are.
        classes: how many classes the dataset has.
        shards: how many shards to make.

    Raises:
        SpecError: see `divide`.
    """
    parts, held_out = divide(spec, labels, count, shards)
    return SplitCut(
        split=spec.split,
        shards=tuple(parts),
        sizes=np.array([len(part) for part in parts], np.int64),
        by_class=count_classes(parts, labels, classes),
        held_out=len(held_out),
    )
