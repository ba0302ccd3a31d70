"""Folds updates into the next version along a tree over the shards.

The fold maps, sums and verifies files in one pass, along a tree over their shards (`passes.py`;
docs/internals/decisions.md, "The fold adds along a fixed tree"). Memory holds one model, and a few
more if we cannot map all updates at once. Damaged data never reaches a result: if a pass fails,
`examine` finds the damaged shards and their faults, so that workers retrain exactly these.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial

from downpour.base.errors import FileCorrupt, NonFinite, StoreError, UpdatesRefused
from downpour.base.values import PublishedFile
from downpour.files.aggregators.passes import (
    Base,
    Counted,
    Held,
    Item,
    Passed,
    Passes,
    examine,
    full_additions,
    last_additions,
    remaining,
)
from downpour.files.aggregators.weights import Contribution
from downpour.files.store import WHOLE, Array, Store
from downpour.host.machine import free_memory
from downpour.host.process import files_at_once

_SUMS_LEAST = 2
"""How many sums there may be in any case; if memory is short, they go into a temporary file."""


class Gathering:
    """The sums of one round's updates so far; use it from one thread.

    It gets updates as they arrive, and adds each to the sums that are possible so far, along the
    tree of the fold. It is only a cache. If it cannot do something, it does nothing, and the fold
    reads the file at the end. If a file is damaged, it drops all its sums, and the fold finds and
    names the file.

    Args:
        store: Where the files are.
        base: The model that the round began from.
        limit_bytes: How much memory the sums may take; None: half of the free memory.
    """

    def __init__(self, store: Store, base: Base, *, limit_bytes: int | None = None) -> None:
        self.base = base
        self._store = store
        size_bytes = max(1, base.form.model.size_bytes)
        free = max(_SUMS_LEAST, free_memory() // 2 // size_bytes)
        self._limit = free if limit_bytes is None else limit_bytes // size_bytes
        self._held: list[Held] = []

    @property
    def shards(self) -> frozenset[int]:
        """The shards that are part of a sum."""
        return frozenset(part.shard for held in self._held for part in held.parts)

    def add(self, parts: Sequence[Counted], threads: int | None = None) -> None:
        """Add as many of these arrived updates as possible; the rest waits for the fold.

        We drop a sum that has another update of one of these shards.
        """
        coming = {part.shard for part in parts}
        self._held = [one for one in self._held if coming.isdisjoint(p.shard for p in one.parts)]
        fitting = self._fitting([part for part in parts if part.factor > 0])
        if not fitting:
            return
        items: list[Item] = sorted([*self._held, *fitting], key=lambda item: item.node)
        self._held = []  # the pass changes them, even if it fails
        steps = list(full_additions([item.node for item in items]))
        try:
            passed = Passes(self._store, self.base, fitting, threads=threads).add(items, steps)
        except StoreError:
            return  # the fold will meet the error, too, and wait, or say whose it is
        if passed.is_right:
            self._held = list(passed.held)
            self.base = replace(self.base, is_verified=True)  # so no later pass hashes it

    def take(self, parts: Sequence[Counted], divisor: float) -> list[Held]:
        """Hand over the sums whose updates are all among these parts; keep none.

        The fold takes an update with all the weight as it is, and so from its file.
        """
        held, self._held = self._held, []
        if any(part.factor == divisor for part in parts):
            return []
        wanted = {part.shard: part for part in parts}
        return [one for one in held if all(wanted.get(part.shard) == part for part in one.parts)]

    def _fitting(self, parts: Sequence[Counted]) -> list[Counted]:
        """Return the parts that we can map at once without exceeding the limit of sums."""
        nodes, fitting = [one.node for one in self._held], list[Counted]()
        for part in parts[: files_at_once()]:
            more = remaining(list(full_additions(sorted([*nodes, part.node]))))
            if len(more) <= self._limit:
                nodes = more
                fitting.append(part)
        return fitting


_UNSTEADY = "its bytes change while we read them"


def fold(  # noqa: PLR0913 - the files to sum, and their format
    store: Store,
    base: PublishedFile,
    contributions: Sequence[Contribution],
    weights: Sequence[float],
    *,
    amounts: Sequence[float] | None = None,
    compression: str = WHOLE,
    trained_from: PublishedFile | None = None,
    threads: int | None = None,
    gathered: Gathering | None = None,
) -> dict[str, Array]:
    """Return the weighted mean of the contributions' parameters.

    The formula is x0 - Σ w_i (x0 - x_i), in float32 (float64 in float64): numbers that no update
    changes stay equal to the base's, bit for bit. With equal weights, we sum first and divide once.
    We take numbers of other types from the lowest shard. A non-finite number in the base is a
    constant: it is the same in every update, and stays.

    Args:
        store: Where the files are.
        base: The model that the round began from; all updates must have its tensors.
        contributions: One for each shard.
        weights: As many as contributions, summing to one.
        amounts: The amounts whose shares are the weights, if each is known separately; the fold
            divides by their sum at the end.
        compression: The compression of all updates; a compressed update says how far it moved.
        trained_from: The version that compressed updates say they began from; absent: the base.
        threads: How many threads share the work; absent: at most two. The number changes no byte.
        gathered: The base and earlier sums, which the fold uses up. They change no byte.
    """
    parts, divisor = _in_shard_order(contributions, weights, amounts)
    opened = partial(Base.opened, store, base, compression, trained_from)
    known: Base | None = None
    for _ in range(2):  # a file that changed during the pass may be valid on a second read
        if gathered is not None:
            known = gathered.base
        elif known is None or not known.is_verified:
            known = opened()
        held = gathered.take(parts, divisor) if gathered is not None else []
        gathered = None
        passed = _fold_once(store, known, parts, held, divisor, threads)
        if passed.is_right:
            return passed.held[0].kept.tensors()
        reasons = examine(store, known, contributions, known=passed.refused)
        if reasons:
            raise UpdatesRefused(reasons)
        if not passed.sound and not passed.altered and not passed.base_altered:
            raise NonFinite("the mean of the updates overflows, although each one is finite")
    if passed.base_altered:
        raise FileCorrupt(base.name, _UNSTEADY)
    raise UpdatesRefused(dict.fromkeys(passed.altered, _UNSTEADY))


def _fold_once(
    store: Store,
    base: Base,
    parts: Sequence[Counted],
    gathered: Sequence[Held],
    divisor: float,
    threads: int | None,
) -> Passed:
    """Sum all parts, ungathered ones in groups; stop if one fails."""
    done = {part.shard for one in gathered for part in one.parts}
    unread = [part for part in parts if part.shard not in done]
    items: list[Item] = sorted([*gathered, *unread], key=lambda item: item.node)
    passes = Passes(store, base, unread, threads=threads, divisor=divisor)
    passed = Passed()
    for group, following in _groups(items):
        # Read files that do not count, but don't add them; the lowest shard supplies the integers.
        others = [one for one in group if isinstance(one, Counted) and one.factor == 0]
        others = [one for one in others if one is not parts[0]]
        counted = [*passed.held, *(item for item in group if item not in others)]
        steps = list(last_additions([item.node for item in counted], following))
        passed = passes.add(counted, steps, others=others, is_last=following is None)
        if not passed.is_right:
            break
    return passed


def _groups(items: Sequence[Item]) -> Iterator[tuple[Sequence[Item], int | None]]:
    """Yield groups of as many files as we map at once, and the shard that follows each group."""
    group: list[Item] = []
    files, most = 0, files_at_once()
    for item in items:
        if files == most:
            yield group, item.node.shard
            group, files = [], 0
        group.append(item)
        files += isinstance(item, Counted)
    yield group, None


def _in_shard_order(
    contributions: Sequence[Contribution], weights: Sequence[float], amounts: Sequence[float] | None
) -> tuple[list[Counted], float]:
    """Return the parts in the order of their shards, and the divisor of their sum."""
    if len({contribution.shard for contribution in contributions}) != len(contributions):
        raise ValueError("a shard contributes twice")
    if abs(math.fsum(weights) - 1) > 1e-9:
        raise ValueError(f"weights sum to {math.fsum(weights)}, not to 1")
    factors, divisor = _factors(weights, amounts)
    parts = [
        Counted(contribution=contribution, factor=factor)
        for contribution, factor in zip(contributions, factors, strict=True)
    ]
    return sorted(parts, key=lambda part: part.shard), divisor


def _factors(
    weights: Sequence[float], amounts: Sequence[float] | None
) -> tuple[Sequence[float], float]:
    if amounts is not None and any(amounts):
        return amounts, math.fsum(amounts)
    if len(set(weights)) == 1:
        return (1.0,) * len(weights), float(len(weights))
    return weights, 1.0
