"""A pass's plan: the files and sums that it adds, and its operations in order.

Some steps of a caller's order name a file or a sum, others add the last two. They become operations
on *places*: kept sums, or pieces of a thread's own memory. A pass adds to sums in place. A new sum
goes into a temporary file if memory is short.

A statistic needs all files at once: each gets a piece of memory, and one operation makes a row of
all pieces.
"""

from __future__ import annotations

import logging
import mmap
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from tempfile import TemporaryFile
from typing import TypeAlias

import numpy as np

from downpour.files.store import Array, HeldRange, Layout
from downpour.host.machine import free_memory

log = logging.getLogger(__name__)

_SPARE_BYTES = 32 * 2**20
"""The memory that stays free beside a sum; we keep smaller sums in memory in any case."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SummedFile:
    """A file to sum: the bytes before its tensors, the tensors' bytes (uint8), its factor."""

    head: memoryview
    data: Array
    factor: float = 0.0


class PartialSum:
    """The sum of some files' differences from the base; it has the model's layout.

    We sum float16 in float32, which takes twice its size in addition. We sum float64 as it is, and
    take numbers that are not floats from the lowest shard.
    """

    def __init__(self, layout: Layout, ranges: Sequence[HeldRange]) -> None:
        self._layout = layout
        self._data = _memory(layout.size_bytes)
        self._results = [each.numbers(self._data) for each in ranges]
        self.totals = {
            each: result if each.sum_dtype == each.dtype else np.empty(result.shape, each.sum_dtype)
            for each, result in zip(ranges, self._results, strict=True)
        }
        """The array for each range in which its sum grows."""

    def tensors(self) -> dict[str, Array]:
        """Return its numbers as tensors by name, views of one buffer."""
        for result, total in zip(self._results, self.totals.values(), strict=True):
            if total is not result:
                result[:] = total
        return self._layout.views(self._data)


def _memory(size_bytes: int) -> Array:
    """Return memory for a sum, as a mapped file if the process may not use so much.

    When a cgroup is full, the kernel writes a file's pages to the disk. For other pages, it would
    kill the process.
    """
    can_reserve = hasattr(os, "posix_fallocate")  # not on macOS
    if can_reserve and size_bytes > _SPARE_BYTES and size_bytes + _SPARE_BYTES > free_memory():
        # Reserve the disk first: a mapped page that finds no room there ends the process, too.
        try:
            with TemporaryFile() as file:
                os.posix_fallocate(file.fileno(), 0, size_bytes)
                return np.frombuffer(mmap.mmap(file.fileno(), size_bytes), np.uint8)
        except OSError as error:
            log.warning("a sum of %d bytes fits neither memory nor disk: %s", size_bytes, error)
    return np.empty(size_bytes, np.uint8)


Combine: TypeAlias = Callable[[Array], Array]
"""Returns one row [k] for the differences [n, k] of all files; may change its argument."""

Step = SummedFile | PartialSum | None
"""A file, a sum, or None to add the last two."""

Place = int | PartialSum
"""The place of a term: the number of a piece of a thread's memory, or a sum."""


@dataclass(frozen=True, slots=True)
class LoadFile:
    """Write a file's difference from the base, times its factor, to a place."""

    file: int
    place: Place


@dataclass(frozen=True, slots=True)
class AddTerms:
    """Add the terms at two places; the sum replaces one of them."""

    into: Place
    left: Place
    right: Place


@dataclass(frozen=True, slots=True)
class CombinePieces:
    """Write a statistic of all pieces of memory to a sum."""

    into: PartialSum
    combine: Combine


@dataclass(slots=True, eq=False)
class _Tree:
    """A term, or an addition of two. `kept` is the sum that takes the result, if one is below."""

    term: SummedFile | PartialSum | None = None
    left: _Tree | None = None
    right: _Tree | None = None
    kept: PartialSum | None = None

    @property
    def lowest(self) -> SummedFile | PartialSum | None:
        """Its first term."""
        return self.term if self.left is None else self.left.lowest


@dataclass(slots=True)
class Additions:
    """The operations of a pass, in order.

    The pass reads all `files`, and adds the first `summed` of them. `sums` are all sums that
    remain; the operations change those in `changed`. `firsts` says from which file a sum takes the
    numbers that we don't sum. `pieces` is how many pieces of memory a thread needs. If the pass
    `combines` all files, it takes such numbers from none in particular.
    """

    files: list[SummedFile] = field(default_factory=list)
    operations: list[LoadFile | AddTerms | CombinePieces] = field(default_factory=list)
    sums: list[PartialSum] = field(default_factory=list)
    changed: list[PartialSum] = field(default_factory=list)
    firsts: list[tuple[PartialSum, int]] = field(default_factory=list)
    summed: int = 0
    pieces: int = 0
    combines: bool = False

    @classmethod
    def of(cls, steps: Sequence[Step], new_sum: Callable[[], PartialSum]) -> Additions:
        """Find a place for each step; `new_sum` makes the sums that are missing."""
        plan = cls(files=[step for step in steps if isinstance(step, SummedFile)])
        plan.summed = len(plan.files)
        numbers = {id(file): number for number, file in enumerate(plan.files)}
        for tree in _trees(steps):
            kept = tree.kept or new_sum()
            plan.sums.append(kept)
            if tree.term is not kept:
                plan.changed.append(kept)
                plan._emit(tree, numbers, 0 if tree.kept else kept, 1 if tree.kept else 0)
            if isinstance(tree.lowest, SummedFile):
                plan.firsts.append((kept, numbers[id(tree.lowest)]))
        return plan

    @classmethod
    def combined(
        cls, steps: Sequence[Step], combine: Combine, new_sum: Callable[[], PartialSum]
    ) -> Additions:
        """Load all files at once, and combine them."""
        files, kept = [step for step in steps if isinstance(step, SummedFile)], new_sum()
        loads = [LoadFile(number, number) for number in range(len(files))]
        return cls(
            files=files,
            operations=[*loads, CombinePieces(kept, combine)],
            sums=[kept],
            changed=[kept],
            summed=len(files),
            pieces=len(files),
            combines=True,
        )

    def _emit(self, tree: _Tree, numbers: dict[int, int], fresh: Place, free: int) -> Place:
        """Add the operations of a tree; return the place of its sum.

        A file goes to the place `fresh`; the pieces of memory from `free` on are unused.
        """
        if isinstance(tree.term, PartialSum):
            return tree.term
        if tree.left is None or tree.right is None:
            self.operations.append(LoadFile(numbers[id(tree.term)], fresh))
            self.pieces = max(self.pieces, fresh + 1 if isinstance(fresh, int) else 0)
            return fresh
        left = self._emit(tree.left, numbers, fresh, free)
        if left is fresh:
            right = self._emit(tree.right, numbers, free, free + 1)
        else:
            right = self._emit(tree.right, numbers, fresh, free)
        into = left if isinstance(left, PartialSum) or isinstance(right, int) else right
        self.operations.append(AddTerms(into, left, right))
        return into


def _trees(steps: Sequence[Step]) -> list[_Tree]:
    stack: list[_Tree] = []
    for step in steps:
        if step is not None:
            stack.append(_Tree(step, kept=step if isinstance(step, PartialSum) else None))
            continue
        left, right = stack[-2:]
        stack[-2:] = [_Tree(left=left, right=right, kept=left.kept or right.kept)]
    return stack
