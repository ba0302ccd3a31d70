"""The hot loop: sums many mapped files into one, hashing every byte while it is in the cache.

All files have one layout. Their bytes are walked in windows; in each window every file's piece is
hashed and added to the sum before the next window begins, so a byte travels from memory once. Two
threads share the work without ever waiting for each other: each hashes its own files (a checksum is
sequential) and sums its own part of every window, so that what one of them fetched the other finds
in the shared cache. Neither windows nor threads touch the order in which the terms of a number are
added, which is the order of the files: the bytes of the sum depend on the files alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, Self

import numpy as np
import xxhash

from downpour.store import Array, Layout

PIECE_BYTES = 512 * 1024
"""What a thread sums at a time: the sum, a term and the file's piece fit second-level caches."""

FILES_AT_ONCE = 64
"""How many files are mapped: each holds a descriptor, of which a process has about a thousand."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A file to be summed: the bytes before its tensors, the tensors' bytes (uint8), its factor."""

    head: memoryview
    data: Array
    factor: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Tally:
    """What is known after some files were added: their checksums; whether the sum is finite.

    A file with factor 0 must be finite too.
    """

    checksums: tuple[str, ...]
    finite: bool


class RunningSum:
    """A weighted sum of files that share a layout, taken a group of files at a time.

    It holds one model in memory however many files come (float16 is summed in float32, for which it
    holds twice its size more). float64 is summed as it is and numbers that are no floats are taken
    from the first file.

    Args:
        layout: Where the tensors lie in every file.
        threads: How many threads share the work.
    """

    def __init__(self, layout: Layout, *, threads: int) -> None:
        self._layout = layout
        self._data = np.empty(layout.size_bytes, np.uint8)
        self._runs = [
            _Run.within(self._data[start:stop].view(dtype), start)
            for dtype, start, stop in layout.runs()
        ]
        self._lanes = threads if layout.size_bytes > PIECE_BYTES else 1
        self._is_empty = True
        self._begun = False  # nor is it after files with factor 0 alone

    def add(self, sources: Sequence[Source], *, divisor: float = 1.0) -> Tally:
        """Add the next files, each times its factor, then divide the sum by `divisor`."""
        group = _Group(
            sources,
            lanes=self._lanes,
            is_first=self._is_empty,
            begun=self._begun,
            divisor=divisor,
        )
        if self._lanes == 1:
            finite = [group.sum_lane(self._runs, 0)]
        else:
            with ThreadPoolExecutor(self._lanes) as pool:
                finite = list(pool.map(partial(group.sum_lane, self._runs), range(self._lanes)))
        self._is_empty = False
        self._begun = group.begun
        return Tally(checksums=group.checksums(), finite=all(finite))

    def tensors(self) -> dict[str, Array]:
        """Return the sum as tensors by name, views of one buffer."""
        for run in self._runs:
            if run.total is not run.result:
                run.result[:] = run.total
        return self._layout.views(self._data)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Run:
    """A stretch of the tensors' bytes that has one dtype; `total` is what is summed in."""

    start: int
    result: Array
    total: Array

    @classmethod
    def within(cls, result: Array, start: int) -> Self:
        narrow = result.dtype.kind == "f" and result.itemsize < 4
        total = np.empty(result.shape, np.float32) if narrow else result
        return cls(start=start, result=result, total=total)

    @property
    def is_float(self) -> bool:
        return self.result.dtype.kind == "f"

    def of(self, source: Source) -> Array:
        return source.data[self.start : self.start + self.result.nbytes].view(self.result.dtype)


class _Group:
    """One pass over some files. Lanes share nothing but what they read and their own hashers."""

    def __init__(
        self, sources: Sequence[Source], *, lanes: int, is_first: bool, begun: bool, divisor: float
    ) -> None:
        counting = [index for index, source in enumerate(sources) if source.factor]
        self.begun = begun or bool(counting)
        self._first_term = counting[0] if counting and not begun else None
        self._sources = sources
        self._hashers = [xxhash.xxh3_128(source.head) for source in sources]
        self._lanes = lanes
        self._is_first = is_first
        self._divisor = divisor

    def checksums(self) -> tuple[str, ...]:
        return tuple(hasher.hexdigest() for hasher in self._hashers)

    def sum_lane(self, runs: Sequence[_Run], lane: int) -> bool:
        """Do one thread's share of all runs; return whether all it saw is finite."""
        # Overflow and NaN are looked for by hand; numpy's warnings would only repeat it.
        with np.errstate(all="ignore"):
            finite = [self._sum_run(run, lane) for run in runs]
        return all(finite)

    def _sum_run(self, run: _Run, lane: int) -> bool:
        numbers = [run.of(source) for source in self._sources]
        count = len(run.total)
        step = PIECE_BYTES // run.total.itemsize
        scratch = np.empty(min(step, count), run.total.dtype)
        finite = True
        for window in range(0, count, step * self._lanes):
            begin = min(window + lane * step, count)
            piece = slice(begin, min(begin + step, count))
            total, term = run.total[piece], scratch[: piece.stop - begin]
            for index, source in enumerate(self._sources):
                if index % self._lanes == lane:
                    whole = slice(window, window + step * self._lanes)
                    self._hashers[index].update(numbers[index][whole].data)
                if run.is_float:
                    finite &= self._add(index, source.factor, numbers[index][piece], total, term)
                elif index == 0 and self._is_first:
                    total[:] = numbers[index][piece]
            if run.is_float:
                finite &= self._close(total)
        return finite

    def _add(self, index: int, factor: float, numbers: Array, total: Array, term: Array) -> bool:
        dtype: np.dtype[Any] = total.dtype
        if factor == 0:
            return bool(np.isfinite(numbers).all())
        if index == self._first_term:
            np.multiply(numbers, factor, out=total, dtype=dtype)
        elif factor == 1:
            np.add(total, numbers, out=total, dtype=dtype)
        else:
            np.multiply(numbers, factor, out=term, dtype=dtype)
            np.add(total, term, out=total, dtype=dtype)
        return True

    def _close(self, total: Array) -> bool:
        if not self.begun:
            return True
        if self._divisor != 1:
            np.divide(total, self._divisor, out=total)
        return bool(np.isfinite(total).all())
