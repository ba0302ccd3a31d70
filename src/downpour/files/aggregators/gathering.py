"""Sums a round's updates before the last one arrives.

A `Gathering` gets updates as they arrive, and adds each to the sums that are possible so far. It
follows the tree of the fold, so the result has the same bytes. It is only a cache. If it cannot do
something, it does nothing, and the fold reads the file at the end. If a file is damaged, it drops
all its sums, and the fold finds and names the file. Each sum knows its updates and their files, so
the fold leaves out a sum with an update that does not count.
"""

from __future__ import annotations

from collections.abc import Sequence

from downpour.base.errors import StoreError
from downpour.files.aggregators.passes import Base, Counted, Held, Item, Passes
from downpour.files.aggregators.tree import full_additions, remaining
from downpour.files.store import Store
from downpour.host.descriptors import files_at_once

LIMIT_BYTES = 2**30
"""The memory that sums may take. If n updates arrive in the order of shards, they leave log2(n)
sums; in the worst order, they leave n / 2. The fold reads the rest at the end."""


class Gathering:
    """The sums of one round's updates so far; use it from one thread.

    Args:
        store: Where the files are.
        base: The model that the round began from.
        limit_bytes: How much memory the sums may take.
    """

    def __init__(self, store: Store, base: Base, *, limit_bytes: int = LIMIT_BYTES) -> None:
        self.base = base
        self._store = store
        self._limit = limit_bytes // max(1, base.form.model.size_bytes)
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
