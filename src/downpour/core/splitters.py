"""Splitters: labels and a seed → the shards of a training set, each a sorted array of indices.

A splitter answers one question: which shard owns each example? So the form of its answer ensures
that every index appears exactly once. It draws random numbers only from the generator that it gets,
and leaves no shard without an example. The rest is common (`split`): it reads the spec's text,
refuses impossible splits, and turns owners into shards. The result depends on the arguments alone:
an experiment draws its split once and then keeps it.
"""

import heapq
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from downpour.base.errors import SpecError
from downpour.core import families
from downpour.core.spec import Spec

Indices = npt.NDArray[np.int64]
Integers = npt.NDArray[np.integer]
"""Classes or owners of all examples, in few bytes each: there may be billions."""
Labels = npt.NDArray[np.generic]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SplitRequest:
    """The examples to split, and the number of shards.

    `classes` has shape (examples,). It holds the class of each example, numbered 0..K-1 without
    gaps, where K classes occur. A request has at least as many examples as shards.
    """

    classes: Integers
    shards: int
    generator: np.random.Generator


Splitter = Callable[[SplitRequest], Integers]
"""Returns the owners: shape (examples,), each a shard in 0..shards-1, every shard at least once."""


def deal(order: Indices, shards: int) -> Integers:
    """Deal examples to the shards in turn, in the given order, like cards to players.

    Returns the owners [n] of the examples. In any stretch of `order`, counts differ by at most one.
    """
    owners = np.empty(len(order), dtype=np.int32)
    for shard in range(shards):
        owners[order[shard::shards]] = shard
    return owners


def shuffled_by_class(request: SplitRequest) -> Indices:
    """Return the examples class by class, and in random order within each class."""
    shuffled = request.generator.permutation(len(request.classes))
    return shuffled[np.argsort(request.classes[shuffled], kind="stable")]


def random_owners(request: SplitRequest) -> Integers:
    """`random`: deal a seeded permutation to the shards in turn; sizes differ by at most one.

    It never looks at the classes, so it also works for datasets without classes. Examples that
    have blocks are split by `whole_blocks` instead.
    """
    return deal(request.generator.permutation(len(request.classes)), request.shards)


def block_by_block(ends: Indices, generator: np.random.Generator) -> Indices:
    """Return all examples [n], with those of a block together and the blocks in random order."""
    order = generator.permutation(len(ends))
    begins = np.concatenate([[0], ends[:-1]])
    return stretches(begins[order], ends[order])


def stretches(begins: Indices, ends: Indices) -> Indices:
    """Return the numbers of each stretch from its begin to before its end, one after the other."""
    counts = ends - begins
    # Each place, less that of its stretch's first number, and plus that number.
    places: Indices = np.arange(counts.sum()) + np.repeat(ends - np.cumsum(counts), counts)
    return places


def whole_blocks(ends: Indices, shards: int, generator: np.random.Generator) -> list[Indices]:
    """Return sorted shards of one size, cut from a permutation of blocks; two share one at most."""
    order = generator.permutation(len(ends))
    begins = np.concatenate([[0], ends[:-1]])[order]
    stops, count = np.cumsum(ends[order] - begins), int(ends[-1])
    cuts = [-(-count * shard // shards) for shard in range(shards + 1)]
    parts = []
    for first, last in pairwise(cuts):
        some = slice(np.searchsorted(stops, first, "right"), np.searchsorted(stops, last) + 1)
        # From a place in the permutation to the example there.
        shift = ends[order[some]] - stops[some]
        start = np.maximum(begins[some], first + shift)
        stop = np.minimum(ends[order[some]], last + shift)
        ascending = np.argsort(start)
        parts.append(stretches(start[ascending], stop[ascending]))
    return parts


def class_owners(request: SplitRequest) -> Integers:
    """`class`: each shard holds whole classes, as far as the classes suffice.

    With as many shards as classes, each shard gets one class. With fewer shards, the splitter deals
    the classes to them in turn. With more shards, each of them holds one class. The
    largest-remainder method gives shards to classes, like seats to parties: in proportion to their
    examples, but at least one each. If a class has several shards, the splitter shuffles it and
    cuts it into parts whose sizes differ by at most one.
    """
    classes = request.classes
    counts = np.bincount(classes)
    if request.shards <= len(counts):
        return classes % np.asarray(request.shards, classes.dtype)
    seats = largest_remainder(counts, request.shards)
    first = np.cumsum(seats) - seats
    # The position of each example within its class, with the classes laid end to end.
    within = np.arange(len(classes)) - np.repeat(np.cumsum(counts) - counts, counts)
    result = np.empty(len(classes), dtype=np.int64)
    result[shuffled_by_class(request)] = np.repeat(first, counts) + within % np.repeat(
        seats, counts
    )
    return result


def largest_remainder(counts: Indices, seats: int) -> Indices:
    """Give out seats in proportion to counts by the largest remainder (Hare quota).

    A count that is too small for a seat still gets one. The other counts share the remaining seats
    in proportion. Among equal remainders, the earlier count comes first. There must be a seat for
    each count, and at most as many as the counts' sum; then none gets more seats than its count.
    """
    given = np.ones(len(counts), dtype=np.int64)
    sharing = np.ones(len(counts), dtype=np.bool_)
    # Leaving out a count raises the quota of the others, so another may become too small for a
    # seat.
    while True:
        votes, left = counts[sharing].sum(), seats - np.count_nonzero(~sharing)
        too_small = sharing & (counts * left < votes)
        if not too_small.any():
            break
        sharing &= ~too_small
    whole, remainders = np.divmod(counts[sharing] * left, votes)
    order = np.argsort(-remainders, kind="stable")
    whole[order[: left - whole.sum()]] += 1
    given[sharing] = whole
    return given


def equal_owners(request: SplitRequest) -> Integers:
    """`equal`: deal every class evenly over the shards, and drop nothing.

    The splitter shuffles each class, lays the classes end to end, and deals their examples to the
    shards in turn, without a break between classes. So each class's counts differ by at most one. A
    class begins with the shard after the last class's final shard. So the remainders rotate, and
    the totals differ by at most one as well.
    """
    return deal(shuffled_by_class(request), request.shards)


def dirichlet(alpha: float) -> Splitter:
    """`dirichlet(ALPHA)`: return a splitter with that concentration."""
    return partial(dirichlet_owners, alpha)


def dirichlet_owners(alpha: float, request: SplitRequest) -> Integers:
    """Skew the shards' labels, as in the federated-learning literature.

    For every class, the splitter draws each shard's proportion from a symmetric Dirichlet
    distribution (Yurochkin et al. 2019, "Bayesian Nonparametric Federated Learning of Neural
    Networks"; after Hsu et al. 2019, "Measuring the Effects of Non-Identical Data Distribution for
    Federated Visual Classification", who draw a mixture of classes for each client). A small ALPHA
    gives each shard few classes and makes sizes unequal. A large ALPHA approaches an even split.

    Other implementations draw again until no client is empty, which may never happen with many
    shards. Here an empty shard takes one example from the shard that is the largest at that moment.
    This always ends, moves as few examples as possible, and leaves no shard empty.
    """
    classes, shards, generator = request.classes, request.shards, request.generator
    result = np.empty(len(classes), dtype=np.int32)
    for members in np.split(shuffled_by_class(request), np.cumsum(np.bincount(classes))[:-1]):
        shares = generator.dirichlet(np.full(shards, alpha))
        # We round the cumulative shares, not the shares, so that every example has an owner.
        ends = np.rint(np.cumsum(shares)[:-1] * len(members))
        result[members] = np.searchsorted(ends, np.arange(len(members)), side="right")
    _fill_empty(result, shards)
    return result


def _fill_empty(result: Integers, shards: int) -> None:
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


def hold_out(
    labels: Labels | None, count: int, share: float, seed: int, block_ends: Indices | None = None
) -> tuple[Indices, Indices]:
    """Divide the examples `0..count-1` into the ones that stay and the held-out ones, both sorted.

    The held-out `share` is exact for each class to within one example. Without classes, examples
    that have blocks are held out by whole blocks, but for one.
    """
    # The second number makes this draw differ from the split, which uses the seed alone.
    generator = np.random.default_rng((seed, 1))
    if labels is None and block_ends is not None:
        order = block_by_block(block_ends, generator)
        is_held = np.arange(count) < np.floor(count * share)
    else:
        order = generator.permutation(count).astype(np.int64, copy=False)
        if labels is not None:
            order = order[np.argsort(labels[order], kind="stable")]
        # With the classes end to end, we take one of every 1 / share examples.
        is_held = np.diff(np.floor(np.arange(count + 1) * share)) > 0
    stay, held = np.sort(order[~is_held]), np.sort(order[is_held])
    if not len(held) or not len(stay):
        accepted = f"holds out {len(held)} of {count} training examples, but both parts need some"
        raise SpecError("validation", share, accepted)
    return stay, held


SPLITTERS: Mapping[str, Splitter] = families.SPLITTERS

_BLOCK = 1 << 18


def split(
    spec_split: str,
    labels: Labels | None,
    count: int,
    shards: int,
    seed: int,
    block_ends: Indices | None = None,
) -> list[Indices]:
    """Split the examples `0..count-1` into shards, by a spec's `split` such as "dirichlet(0.5)".

    Returns one array of sorted indices per shard, none empty; every index appears exactly once.
    """
    families.SPLITTERS.check(spec_split)
    if not 1 <= shards <= count:
        raise SpecError(
            "shards", shards, f"must be from 1 to {count}, the number of training examples"
        )
    if labels is None:
        labels = np.zeros(count, dtype=np.uint16)
    if labels.shape != (count,):
        raise ValueError(f"{count} examples, but labels of shape {labels.shape}")
    if shards == 1:
        return [np.arange(count)]
    generator = np.random.default_rng(seed)
    if spec_split == "random" and block_ends is not None:
        return whole_blocks(block_ends, shards, generator)
    request = SplitRequest(classes=_without_gaps(labels), shards=shards, generator=generator)
    owners = np.asarray(SPLITTERS[spec_split](request))
    counts = owners.shape == (count,) and np.can_cast(owners.dtype, np.int64)
    known = counts and owners.min() >= 0 and owners.max() < shards
    parts = _shards_of(owners, shards) if known else []
    if not parts or not all(map(len, parts)):  # a package's splitter may return anything
        accepted = f"must give each of {count} examples a shard from 0 to {shards - 1}, and each "
        found = f"{owners.dtype} of shape {owners.shape}"
        if owners.size and owners.dtype.kind in "iuf":
            found += f", from {owners.min()} to {owners.max()}"
        raise SpecError("split", spec_split, f"{accepted}shard an example; it returned {found}")
    return parts


def divide(
    spec: Spec, labels: Labels | None, count: int, shards: int, block_ends: Indices | None = None
) -> tuple[list[Indices], Indices]:
    """Divide training examples as a spec says: into shards and held-out examples for validation."""
    if labels is None and spec.split != "random":
        remedy = "; a Task may give them with labels()" if spec.task else ""
        accepted = f"must be random because the dataset has no classes{remedy}"
        raise SpecError("split", spec.split, accepted)
    if not spec.validation:
        parts = split(spec.split, labels, count, shards, spec.seed, block_ends)
        return parts, np.empty(0, dtype=np.int64)
    stay, held = hold_out(labels, count, spec.validation, spec.seed, block_ends)
    there = None if labels is None else labels[stay]
    ends = None if block_ends is None else np.unique(np.searchsorted(stay, block_ends))
    ends = ends if ends is None else ends[ends > 0]
    parts = split(spec.split, there, len(stay), shards, spec.seed, ends)
    return [stay[part] for part in parts], held


def _without_gaps(labels: Labels) -> Integers:
    """Number classes without gaps: a limit may have left some without an example."""
    present = np.bincount(labels) > 0
    numbers: Integers = np.cumsum(present) - 1
    classes: Integers = numbers.astype(np.uint16 if len(numbers) < 1 << 16 else np.int32)[labels]
    return classes


def _shards_of(owners: Integers, shards: int) -> list[Indices]:
    """Gather each owner's indices in ascending order, some at a time: there may be billions."""
    blocks = range(0, len(owners), _BLOCK)
    counts = sum(np.bincount(owners[at : at + _BLOCK], minlength=shards) for at in blocks)
    ends = np.cumsum(counts)
    gathered, free = np.empty(len(owners), np.int64), ends - counts
    for at in blocks:
        block = owners[at : at + _BLOCK]
        order, count = np.argsort(block, kind="stable"), np.bincount(block, minlength=shards)
        # The place of each in its shard: those free, but for the ones of this block before it.
        places = np.repeat(free - (np.cumsum(count) - count), count) + np.arange(len(block))
        gathered[places] = at + order
        free += count
    return np.split(gathered, ends[:-1])


Shares = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ShardCounts:
    """How many examples each shard has, and how many of each class.

    The distance of a shard is the total variation distance between its class shares and those of
    all shards together: half the sum, over the classes, of the absolute differences. 0 means the
    same mixture of classes. The distance never reaches 1, because a shard is itself a part of all
    shards.

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
    """Count each shard's examples of each class: [shards, classes]; [shards, 0] without labels."""
    if labels is None:
        return np.empty((len(shards), 0), np.int64)
    return np.array([np.bincount(labels[one], minlength=classes) for one in shards], np.int64)


def cut(
    spec: Spec,
    labels: Labels | None,
    count: int,
    classes: int,
    shards: int,
    block_ends: Indices | None = None,
) -> SplitCut:
    """Cut training examples by `divide`, as the manager does when it prepares an experiment."""
    parts, held_out = divide(spec, labels, count, shards, block_ends)
    return SplitCut(
        split=spec.split,
        shards=tuple(parts),
        sizes=np.array([len(part) for part in parts], np.int64),
        by_class=count_classes(parts, labels, classes),
        held_out=len(held_out),
    )
