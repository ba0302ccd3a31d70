"""What a split makes of the training data: who has which classes, and how far shards differ.

The distance of a shard is the total variation distance between its class shares and those of all
shards together: half the sum, over the classes, of the absolute differences. 0 means the same
mixture of classes. 1 is never reached, because a shard is itself a part of all shards.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from downpour.core.spec import Spec
from downpour.core.splitters import divide
from downpour.core.splitters.base import Indices, Labels

Shares = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SplitCut:
    """The shards that a split makes, and how many examples of each class they have.

    Attributes:
        split: as a spec names it.
        shards: the indices of each shard's examples, none empty.
        by_class: shape (shards, classes); no classes where examples have none.
        held_out: how many examples are set apart for validation.
    """

    split: str
    shards: tuple[Indices, ...]
    by_class: Indices
    held_out: int

    @property
    def classes(self) -> int:
        """How many classes the dataset has; 0 if examples have none."""
        return int(self.by_class.shape[1])

    @property
    def sizes(self) -> Indices:
        """How many examples each shard has, shape (shards,)."""
        return np.array([len(shard) for shard in self.shards], np.int64)

    @property
    def unevenness(self) -> float:
        """The size of the largest shard over that of the smallest, at least 1."""
        return float(self.sizes.max() / self.sizes.min())

    @property
    def classes_held(self) -> Indices:
        """Of how many classes each shard has an example, shape (shards,)."""
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
        """The mean of `distances`: every shard counts the same, whatever its size."""
        return float(self.distances.mean())


def cut(spec: Spec, labels: Labels | None, count: int, classes: int, shards: int) -> SplitCut:
    """Cut training examples by `divide`, as the manager does when it prepares an experiment.

    Args:
        spec: says how.
        labels: shape (count,), the class of each example, in 0..classes-1; None if there are none.
        count: how many examples there are.
        classes: how many classes the dataset has.
        shards: how many shards to make.

    Raises:
        SpecError: see `divide`.
    """
    parts, held_out = divide(spec, labels, count, shards)
    if labels is None:
        by_class = np.empty((shards, 0), np.int64)
    else:
        rows = [np.bincount(labels[part], minlength=classes) for part in parts]
        by_class = np.array(rows, np.int64)
    return SplitCut(
        split=spec.split, shards=tuple(parts), by_class=by_class, held_out=len(held_out)
    )
