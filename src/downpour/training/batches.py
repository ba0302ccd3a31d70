"""The order in which a task sees its shard: one permutation, cut into batches.

`shuffled` is a seeded permutation. `balanced` is stratified: the batches are filled one after the
other, and each takes from every class its share of what is left, s * r_c / R examples for a batch
of s, with r_c of the R remaining examples in class c. Shares are rounded down, and the places left
over go to the largest remainders (ties in random order); so a class never differs from its share by
a whole example, and every index appears exactly once. The order follows from (seed, epoch, shard)
alone, and a round is an epoch.

A single example that is left over joins the batch before it: batch normalization has no variance of
one example, and its gradient would weigh as much as a whole batch's.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from downpour.datasets.seeding import random_order
from downpour.errors import SpecError
from downpour.spec import Spec

Indices = NDArray[np.int64]

_SHUFFLED, _BALANCED, _TIES = 1, 2, 4


def batch_order(
    spec: Spec, indices: Indices, labels: Indices | None, epoch: int, shard: int
) -> Indices:
    """Return the shard's indices in the order of training; every `batch_size` of them are a batch.

    Args:
        spec: gives the seed, `batches` and `batch_size`.
        indices: the shard, as indices of training examples [n].
        labels: the class of every training example, or None where targets are not classes.
        epoch: the round.
        shard: the shard's number.

    Raises:
        SpecError: balanced batches are asked for where there are no classes, or more in the shard
            than fit into a batch.
    """
    if spec.batches == "shuffled":
        return indices[random_order(len(indices), _SHUFFLED, spec.seed, epoch, shard)]
    if labels is None:
        raise SpecError("batches", spec.batches, "needs labels that are classes")
    order = indices[random_order(len(indices), _BALANCED, spec.seed, epoch, shard)]
    present, classes = np.unique(labels[order], return_inverse=True)
    if len(present) > spec.batch_size:
        accepted = f"a shard holds {len(present)} classes; batch_size must be at least that"
        raise SpecError("batches", spec.batches, accepted)
    tie_order = random_order(len(present), _TIES, spec.seed, epoch, shard)
    return order[_stratified(classes, tie_order, spec.batch_size)]


def batches_in(samples: int, batch_size: int) -> int:
    """Return the number of batches of a shard."""
    whole, rest = divmod(samples, batch_size)
    return whole + 1 if rest > 1 or (rest and not whole) else whole


def samples_in(batches: int, samples: int, batch_size: int) -> int:
    """Return how many of a shard's examples its first batches hold."""
    everything = batches >= batches_in(samples, batch_size)
    return samples if everything else batches * batch_size


def work_of(spec: Spec, samples: int) -> tuple[int, int]:
    """Return the steps of a task on a shard with `samples` examples, and the examples it uses."""
    batches = batches_in(samples, spec.batch_size)
    steps = batches if spec.local_steps is None else min(batches, spec.local_steps)
    return steps, samples_in(steps, samples, spec.batch_size)


def _stratified(classes: Indices, tie_order: Indices, batch_size: int) -> Indices:
    """Return the positions of `classes` (numbers from 0 on, in random order) batch by batch."""
    by_class = np.argsort(classes, kind="stable")
    remaining = np.bincount(classes)
    ends = np.cumsum(remaining)
    chosen: list[Indices] = []
    for left in range(len(classes), 0, -batch_size):
        taken = _shares(remaining, min(batch_size, left), tie_order)
        chosen += [
            by_class[end - rest : end - rest + take]
            for end, rest, take in zip(ends, remaining, taken, strict=True)
        ]
        remaining = remaining - taken
        tie_order = np.roll(tie_order, 1)
    return np.concatenate(chosen) if chosen else by_class


def _shares(remaining: Indices, size: int, tie_order: Indices) -> Indices:
    """Divide a batch of `size` among the classes by what remains of each (largest remainder)."""
    wanted = size * remaining
    shares: Indices = wanted // remaining.sum()
    missing = size - int(shares.sum())
    by_remainder = tie_order[np.argsort(-(wanted % remaining.sum())[tie_order], kind="stable")]
    shares[by_remainder[:missing]] += 1
    return shares
