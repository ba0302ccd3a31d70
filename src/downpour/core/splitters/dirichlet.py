"""`dirichlet(ALPHA)`: shards whose labels are skewed, as in the federated-learning literature.

For every class, the splitter draws each shard's proportion from a symmetric Dirichlet distribution
(Yurochkin et al. 2019, "Bayesian Nonparametric Federated Learning of Neural Networks"; after Hsu et
al. 2019, "Measuring the Effects of Non-Identical Data Distribution for Federated Visual
Classification", who draw a mixture of classes for each client). A small ALPHA gives each shard few
classes and makes sizes unequal. A large ALPHA approaches an even split.

Other implementations draw again until no client is empty, which may never happen with many shards.
Here an empty shard takes one example from the shard that is the largest at that moment. This always
ends, moves as few examples as possible, and leaves no shard empty.
"""

from __future__ import annotations

import heapq

import numpy as np

from downpour.core.splitters.base import Numbers, SplitRequest, shuffled_by_class


def owners(request: SplitRequest) -> Numbers:
    """Say which shard owns each example; see `Splitter`."""
    classes, shards, generator = request.classes, request.shards, request.generator
    if request.alpha is None:
        raise ValueError("a Dirichlet split needs a concentration")
    result = np.empty(len(classes), dtype=np.int32)
    for members in np.split(shuffled_by_class(request), np.cumsum(np.bincount(classes))[:-1]):
        shares = generator.dirichlet(np.full(shards, request.alpha))
        # We round the cumulative shares, not the shares, so that every example has an owner.
        ends = np.rint(np.cumsum(shares)[:-1] * len(members))
        result[members] = np.searchsorted(ends, np.arange(len(members)), side="right")
    _fill_empty(result, shards)
    return result


def _fill_empty(result: Numbers, shards: int) -> None:
    """Give every empty shard an example from the largest shard, in place."""
    sizes = np.bincount(result, minlength=shards)
    if sizes.all():
        return
    order = np.argsort(result, kind="stable")
    ends = np.cumsum(sizes)
    # A heap, because with many shards a search for the largest would cost shards squared.
    largest = [(-int(size), shard) for shard, size in enumerate(sizes)]
    heapq.heapify(largest)
    for empty in np.flatnonzero(sizes == 0):
        size, donor = heapq.heappop(largest)  # negative, because heapq pops the smallest first
        result[order[ends[donor] + size]] = empty
        heapq.heappush(largest, (size + 1, donor))
