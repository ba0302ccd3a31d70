"""The order of a shard's examples in an epoch: one permutation, cut into batches.

`shuffled` is a seeded permutation. `balanced` is stratified: the batches are filled one after the
other, and each takes from every class its share of the remaining examples. For a batch of s, that
is s * r_c / R examples, with r_c of the R remaining examples in class c. Shares are rounded down,
and the places left over go to the largest remainders (ties in random order). So a class never
differs from its share by a whole example, and every index appears exactly once. The order follows
from (seed, epoch, shard) alone.

Examples that have blocks are shuffled within a window that slides over their blocks, which come in
random order. So an epoch reads a block once, and has few of them open at a time.

If an epoch has `meet` meetings, the m-th task trains the m-th of `meet` consecutive, nearly equal
slices of the epoch's batches. The last batch is as large as the others, to one example. With
`last_batch` = `rest`, it has the remaining examples, as in PyTorch's DataLoader, and with `drop`
an epoch leaves these out.

A single example that is left over joins the batch before it: batch normalization has no variance of
one example. So the number of steps is the same for all sizes.
"""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from downpour.base.errors import SpecError
from downpour.core.spec import Spec, batches_in
from downpour.core.splitters import stretches
from downpour.learning.datasets.source import random_order

Indices = NDArray[np.int64]

_SHUFFLED, _BALANCED, _TIES, _BLOCKS = 1, 2, 4, 5

_KEPT_BYTES = 2**28


class KeptArrays:
    """The indices or orders that were needed last, because an epoch has many tasks of a shard.

    At least the last one is kept, and the ones before it while all take `limit_bytes` at most.
    """

    def __init__(self, limit_bytes: int = _KEPT_BYTES) -> None:
        self._limit_bytes = limit_bytes
        self._kept: dict[Hashable, Indices] = {}

    def get(self, key: Hashable, count: int, make: Callable[[], Indices]) -> Indices:
        """Return the array of a key, which has `count` numbers if `make` makes it now."""
        array = self._kept.pop(key, None)
        if array is None:
            # Before we make it, because a shard may have a billion examples.
            left_bytes = self._limit_bytes - count * np.dtype(np.int64).itemsize
            while self._kept and sum(one.nbytes for one in self._kept.values()) > left_bytes:
                del self._kept[next(iter(self._kept))]
            array = make()
        self._kept[key] = array
        return array


def batch_order(
    spec: Spec,
    indices: Indices,
    labels: Indices | None,
    epoch: int,
    shard: int,
    first: int | None = None,
    block_ends: Indices | None = None,
    window_blocks: int = 1,
) -> Indices:
    """Return the shard's indices in the order of training; `samples_in` tells the batches' bounds.

    `labels` are the classes of all training examples, or None where targets are not classes. If
    the `first` places of the order are enough, the rest takes no memory.
    """
    if block_ends is not None:
        return _by_blocks(indices, block_ends, window_blocks, first, spec.seed, epoch, shard)
    if spec.order == "given":
        return np.sort(indices)[:first]
    if spec.batches == "shuffled":
        words = _SHUFFLED, spec.seed, epoch, shard
        return indices[random_order(len(indices), *words, first=first)]
    if labels is None:
        raise SpecError("batches", spec.batches, "needs labels that are classes")
    order = indices[random_order(len(indices), _BALANCED, spec.seed, epoch, shard)]
    present, classes = np.unique(labels[order], return_inverse=True)
    if len(present) > spec.batch_size:
        accepted = f"must be at least {len(present)}, the number of classes in a shard"
        raise SpecError("batches", spec.batches, accepted)
    tie_order = random_order(len(present), _TIES, spec.seed, epoch, shard)
    bounds = [
        samples_in(count, len(order), spec)
        for count in range(batches_in(len(order), spec.batch_size, spec.last_batch) + 1)
    ]
    return order[_stratified(classes, tie_order, np.diff(bounds))]


def blocks_in_order(
    indices: Indices, ends: Indices, window: int, place: int, *words: int
) -> Indices:
    """Return the last index of each block that a shard needs from about a place of an epoch on."""
    _, blocks, begins, stops = _blocks_of(indices, ends, *words)
    # On average, a block has passed when as many examples were trained as it and the blocks
    # before it have, and those of half a window more.
    passed = np.searchsorted(np.cumsum(stops - begins), place, side="right") - window // 2
    last: Indices = ends[blocks[max(0, passed if len(blocks) > window else 0) :]] - 1
    return last


def _by_blocks(
    indices: Indices, ends: Indices, window: int, first: int | None, *words: int
) -> Indices:
    """Return indices in the order of a window that slides over their blocks; at least the `first`.

    Block p, in random order, comes in at time p, and each of its examples follows at a random time
    before p + `window`. So an example of every block in the window may be next, and blocks come in
    one by one, from the first step on.
    """
    ascending, blocks, begins, stops = _blocks_of(indices, ends, *words)
    if len(blocks) <= window:
        return indices[random_order(len(indices), _SHUFFLED, *words, first=first)]
    taken = len(blocks) if first is None else window
    while True:
        counts = (stops - begins)[:taken]
        generator = np.random.PCG64(np.random.SeedSequence((_SHUFFLED, *words)))
        delays = generator.random_raw(int(counts.sum())) * (window / 2**64)
        times = np.repeat(np.arange(len(counts)), counts) + delays
        order = np.argsort(times, kind="stable")
        # Examples of the blocks that were left out may come after this time.
        known = len(order) if taken >= len(blocks) else int(np.count_nonzero(times < taken))
        if first is None or known >= min(first, len(indices)):
            return ascending[stretches(begins[:taken], stops[:taken])[order[:known]]]
        taken *= 2


def _blocks_of(indices: Indices, ends: Indices, *words: int) -> tuple[Indices, ...]:
    """Return indices in ascending order, their blocks in random order, and each one's slice."""
    if not (indices[1:] > indices[:-1]).all():  # as those of a task that has parts of two shards
        indices = np.sort(indices)
    stops = np.searchsorted(indices, ends)
    begins = np.concatenate([[0], stops[:-1]])
    present = np.flatnonzero(stops > begins)
    order = present[random_order(len(present), _BLOCKS, *words)]
    return indices, order, begins[order], stops[order]


def samples_in(batches: int, samples: int, spec: Spec) -> int:
    """Return how many of a shard's examples its first batches hold."""
    all_batches = batches_in(samples, spec.batch_size, spec.last_batch)
    if batches >= all_batches:
        dropped = spec.last_batch == "drop"
        return min(all_batches * spec.batch_size, samples) if dropped else samples
    if spec.last_batch == "even":
        return samples * batches // all_batches
    return batches * spec.batch_size


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A task's part of a shard's epoch: `steps` batches from the batch `first` on.

    `samples` are the examples in them. The task takes the steps of the epoch from `before` on, of
    `of_epoch` that the shard has in all its meetings.
    """

    first: int
    steps: int
    samples: int
    before: int
    of_epoch: int


def part_of(spec: Spec, samples: int, number: int, share: float = 1.0) -> Part:
    """Return the part of a shard with `samples` examples that a task trains.

    The round's `number` counts from the beginning of the whole training. The task has a `share` of
    the round's steps, but at least one.
    """
    batches, each = batches_in(samples, spec.batch_size, spec.last_batch), spec.meetings.each
    bounds = [batches * meeting // each for meeting in range(each + 1)]
    most = batches if spec.local_steps is None else spec.local_steps
    steps = [min(stop - start, most) for start, stop in pairwise(bounds)]
    meeting = number % each
    first, count = bounds[meeting], steps[meeting]
    if share < 1:
        # And a trifle, because 0.29 * 100 is 28.999999999999996.
        count = min(count, max(1, int(share * count + 1e-9)))
    seen = samples_in(first, samples, spec)
    return Part(
        first=first,
        steps=count,
        samples=samples_in(first + count, samples, spec) - seen,
        before=sum(steps[:meeting]),
        of_epoch=sum(steps),
    )


def check_meetings(spec: Spec, shard_samples: Sequence[int]) -> None:
    """Refuse more meetings an epoch than a shard has batches."""
    least = min(shard_samples)
    batches = batches_in(least, spec.batch_size, spec.last_batch)
    if spec.meetings.each > batches:
        size = spec.batch_size
        why = f"the smallest shard has {least} examples, or {batches} batches of {size}"
        raise SpecError("meet", spec.meet, f"must be at most {batches}: {why}")


def _stratified(classes: Indices, tie_order: Indices, sizes: Indices) -> Indices:
    """Return the positions of `classes` (numbers from 0 on, in random order) batch by batch."""
    by_class = np.argsort(classes, kind="stable")
    remaining = np.bincount(classes)
    ends = np.cumsum(remaining)
    chosen: list[Indices] = []
    for size in sizes.tolist():
        taken = _shares(remaining, size, tie_order)
        chosen += [
            by_class[end - rest : end - rest + take]
            for end, rest, take in zip(ends, remaining, taken, strict=True)
        ]
        remaining = remaining - taken
        tie_order = np.roll(tie_order, 1)
    return np.concatenate(chosen) if chosen else by_class


def _shares(remaining: Indices, size: int, tie_order: Indices) -> Indices:
    """Divide a batch of `size` among classes by their remaining examples (largest remainder)."""
    wanted = size * remaining
    shares: Indices = wanted // remaining.sum()
    missing = size - int(shares.sum())
    by_remainder = tie_order[np.argsort(-(wanted % remaining.sum())[tie_order], kind="stable")]
    shares[by_remainder[:missing]] += 1
    return shares
