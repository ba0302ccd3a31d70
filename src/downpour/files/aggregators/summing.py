"""The hot loop: sums many mapped files into one, hashing every byte while it is in the cache.

We sum each file's difference from a base, the model that all of them started from: x0 - Σ w_i (x0 -
x_i). If a file agrees with the base, that is exact, so untrained numbers never move. We round only
small numbers on the way, which about halves the error of Σ w_i x_i. We subtract the files from the
base, and their sum from the base again, because only then does a negative zero stay negative.

A compressed update holds the difference x0 - x_i itself; we decode it as we add it.

All files have the same layout. A pass walks their bytes in windows. It hashes and adds every file's
piece of a window before the next window begins, so a byte travels from memory once. The caller
chooses the additions (`passes.py`): files, and sums from earlier passes. Two threads share the work
without ever waiting for each other. Each hashes its own files (a checksum is sequential) and sums
its own part of every window. So each finds the other's data in the shared cache. Neither windows
nor threads affect the order in which we add the terms of a number.

Some steps of a caller's order name a file or a sum, others add the last two. They become operations
on *places*: kept sums, or pieces of a thread's own memory. A pass adds to sums in place. A new sum
goes into a temporary file if memory is short.
"""

from __future__ import annotations

import logging
import mmap
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from tempfile import TemporaryFile
from typing import Any

import numpy as np
import xxhash

from downpour.files.compression import STRIDE
from downpour.files.store import Array, HeldRange, Layout, UpdateFormat
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
        self._results = [self._data[each.start : each.stop].view(each.dtype) for each in ranges]
        self.totals = [_room_for_sum(result) for result in self._results]
        """One array for each range, in which its sum grows."""

    def tensors(self) -> dict[str, Array]:
        """Return its numbers as tensors by name, views of one buffer."""
        for result, total in zip(self._results, self.totals, strict=True):
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


def _room_for_sum(result: Array) -> Array:
    narrow = result.dtype.kind == "f" and result.itemsize < np.dtype(np.float32).itemsize
    return np.empty(result.shape, np.float32) if narrow else result


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
    numbers that we don't sum. `pieces` is how many pieces of memory a thread needs.
    """

    files: list[SummedFile] = field(default_factory=list)
    operations: list[LoadFile | AddTerms] = field(default_factory=list)
    sums: list[PartialSum] = field(default_factory=list)
    changed: list[PartialSum] = field(default_factory=list)
    firsts: list[tuple[PartialSum, int]] = field(default_factory=list)
    summed: int = 0
    pieces: int = 0

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


PIECE_BYTES = 2 * 2**20
"""The total size of a thread's pieces of memory.

Measured with ten files, on cores with 1 MiB of cache each and 32 MiB in common: with 0.5 MiB, two
threads are a quarter slower.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class AddedFiles:
    """The result of adding some files: the remaining sums, and whether all is sound.

    Numbers are sound if they are finite, in the sum and also in a file with factor 0, or if the
    base has the same non-finite number. Checksums are in the order of the files.
    """

    sums: tuple[PartialSum, ...]
    checksums: tuple[str, ...]
    sound: bool


def is_sound(numbers: Array, base: Array) -> bool:
    """Say whether a file's floats are usable: finite, or the base's own non-finite numbers."""
    bits = f"u{numbers.itemsize}"
    same = numbers.view(bits) == base.view(bits)
    return bool(np.all(same | (np.isfinite(numbers) & np.isfinite(base))))


class Summing:
    """Passes over files that share a layout, which add the files to each other and to sums.

    Args:
        form: The places of the tensors in the model and in every file.
        base: The model from which all files were trained; its factor does not matter.
        threads: How many threads share the work.
        is_verified: Whether the base's bytes are known to be right; else the first pass hashes
            them.
    """

    def __init__(
        self, form: UpdateFormat, base: SummedFile, *, threads: int = 1, is_verified: bool = False
    ) -> None:
        self._layout = form.model
        self._ranges = form.ranges()
        self._base = base
        self._base_hasher = xxhash.xxh3_128(base.head)
        self._hashes_base = not is_verified
        self._lanes = threads if form.model.size_bytes > PIECE_BYTES else 1

    @property
    def base_checksum(self) -> str:
        """The base's checksum, which we know once we have added the first files."""
        return self._base_hasher.hexdigest()

    def add(
        self,
        steps: Sequence[Step],
        *,
        others: Sequence[SummedFile] = (),
        divisor: float | None = None,
        sole: SummedFile | None = None,
    ) -> AddedFiles:
        """Add files and sums to each other; this changes the sums.

        Args:
            steps: The additions, see `Additions`.
            others: Files to read but not to add. They count with factor 0, but must be sound.
            divisor: The divisor that makes the only remaining sum the mean of files; absent until
                the sum is whole.
            sole: The file that has all the weight, if there is one: we take it as it is.
        """
        plan = Additions.of(steps, partial(PartialSum, self._layout, self._ranges))
        plan.files += others
        job = _Pass(
            plan=plan,
            hashers=[xxhash.xxh3_128(source.head) for source in plan.files],
            base=self._base,
            base_hasher=self._base_hasher if self._hashes_base else None,
            divisor=divisor,
            sole=sole,
            lanes=self._lanes,
        )
        stretches = [_Stretch(number, place) for number, place in enumerate(self._ranges)]
        if self._lanes == 1:
            sound = [job.sum_lane(stretches, 0)]
        else:
            with ThreadPoolExecutor(self._lanes) as pool:
                sound = list(pool.map(partial(job.sum_lane, stretches), range(self._lanes)))
        self._hashes_base = False
        checksums = tuple(hasher.hexdigest() for hasher in job.hashers)
        return AddedFiles(sums=tuple(plan.sums), checksums=checksums, sound=all(sound))


@dataclass(frozen=True, slots=True)
class _Stretch:
    """Numbers that files hold in the same way, the `number`-th such stretch of the model."""

    number: int
    place: HeldRange

    @property
    def is_float(self) -> bool:
        return self.place.dtype.kind == "f"

    @property
    def is_compressed(self) -> bool:
        return self.place.codec is not None

    @property
    def count(self) -> int:
        return (self.place.stop - self.place.start) // self.place.dtype.itemsize

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of its sums."""
        narrow = self.is_float and self.place.dtype.itemsize < 4
        return np.dtype(np.float32) if narrow else self.place.dtype

    def step(self, pieces: int) -> int:
        """Return how many numbers a thread sums at a time, with this many pieces of memory."""
        step = max(1, PIECE_BYTES // max(1, pieces) // self.dtype.itemsize)
        return max(STRIDE, step - step % STRIDE) if self.is_compressed else step

    def base(self, source: SummedFile) -> Array:
        """Return the numbers of the model."""
        return source.data[self.place.start : self.place.stop].view(self.place.dtype)

    def held(self, source: SummedFile) -> Array:
        """Return an update's content: numbers, or bytes to decode."""
        held = source.data[self.place.held_start : self.place.held_stop]
        return held if self.is_compressed else held.view(self.place.dtype)

    def cut(self, part: slice, *, with_padding: bool = False) -> slice:
        """Return where an update holds numbers of a stretch; they begin at a multiple of STRIDE."""
        codec = self.place.codec
        if codec is None:
            return part
        is_end = with_padding and part.stop >= self.count
        return slice(codec.size(part.start), None if is_end else codec.size(part.stop))


@dataclass(frozen=True, slots=True)
class _Window:
    """One thread's part of a window: the base's numbers, and the files' content.

    If updates are compressed, we decode them into `decoded`.
    """

    stretch: _Stretch
    part: slice
    base: Array
    held: Sequence[Array]
    pieces: Sequence[Array]
    decoded: Array

    def at(self, place: Place) -> Array:
        """Return the numbers at a place."""
        if isinstance(place, int):
            return self.pieces[place][: len(self.base)]
        return place.totals[self.stretch.number][self.part]

    def load(self, number: int, factor: float, place: Place) -> bool:
        """Write a file's difference to a place; return False if it is known to be unsound."""
        difference, sound = self.at(place), True
        if self.stretch.place.codec is not None:
            decoded = self._decoded(number)
            sound = bool(np.isfinite(decoded).all())
            difference[:] = decoded if factor else 0
        elif factor:
            # Non-finite numbers show in the sum.
            np.subtract(self.base, self.held[number], out=difference, dtype=difference.dtype)
        else:
            sound = self.is_sound(number)
            difference.fill(0)
        if factor not in (0, 1):
            np.multiply(difference, factor, out=difference)
        return sound

    def is_sound(self, number: int) -> bool:
        """Say whether a file's numbers are usable; decode them if necessary."""
        if self.stretch.is_compressed:
            return bool(np.isfinite(self._decoded(number)).all())
        held = self.held[number]
        return bool(np.isfinite(held).all()) or is_sound(held, self.base)

    def close(self, total: Array, divisor: float) -> None:
        """Turn the sum of all differences into the mean of the files."""
        if divisor != 1:
            np.divide(total, divisor, out=total)
        np.subtract(self.base, total, out=total, dtype=total.dtype)

    def keep_constants(self, total: Array, *, closed: bool) -> bool:
        """Keep the base's non-finite numbers; return whether all others are finite."""
        constant = ~np.isfinite(self.base)
        np.copyto(total, self.base if closed else 0, where=constant)
        return bool((np.isfinite(total) | constant).all())

    def _decoded(self, number: int) -> Array:
        codec, decoded = self.stretch.place.codec, self.decoded[: len(self.base)]
        if codec is not None:
            codec.decode(self.held[number], decoded)
        return decoded


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Pass:
    """One pass over some files. Lanes share only their inputs, and keep their own `hashers`."""

    plan: Additions
    hashers: Sequence[xxhash.xxh3_128]
    base: SummedFile
    base_hasher: xxhash.xxh3_128 | None
    divisor: float | None
    sole: SummedFile | None
    lanes: int

    def sum_lane(self, stretches: Sequence[_Stretch], lane: int) -> bool:
        """Do one thread's share of all stretches; return whether all it saw is sound."""
        # We look for overflow and NaN ourselves; numpy's warnings would only repeat that.
        with np.errstate(all="ignore"):
            sound = [self._sum_stretch(stretch, lane) for stretch in stretches]
        return all(sound)

    def _sum_stretch(self, stretch: _Stretch, lane: int) -> bool:
        base = stretch.base(self.base)
        files = [stretch.held(source) for source in self.plan.files]
        count, step = stretch.count, stretch.step(self.plan.pieces)
        most = min(step, count)
        pieces = [np.empty(most, stretch.dtype) for _ in range(self.plan.pieces)]
        decoded = np.empty(most if stretch.is_compressed else 0, np.float32)
        sound = True
        for begin in range(0, count, step * self.lanes):
            whole = slice(begin, begin + step * self.lanes)
            start = min(begin + lane * step, count)
            part = slice(start, min(start + step, count))
            held = [file[stretch.cut(part)] for file in files]
            window = _Window(stretch, part, base[part], held, pieces, decoded)
            if self.base_hasher is not None and lane == 0:
                self.base_hasher.update(base[whole].data)
            hashed = stretch.cut(whole, with_padding=True)
            sound &= self._add(window, [file[hashed] for file in files], lane)
        return sound

    def _add(self, window: _Window, hashed: Sequence[Array], lane: int) -> bool:
        """Hash and add a window of all files; return whether all is sound."""
        stretch = window.stretch
        takes_one = self.sole is not None and not stretch.is_compressed
        if takes_one or not stretch.is_float:
            return self._take(window, hashed, lane)
        sound = True
        for operation in self.plan.operations:
            if isinstance(operation, LoadFile):
                number = operation.file
                self._hash(number, hashed[number], lane)
                factor = self.plan.files[number].factor
                sound &= window.load(number, factor, operation.place)
            else:
                left, right = window.at(operation.left), window.at(operation.right)
                np.add(left, right, out=window.at(operation.into))
        for number in range(self.plan.summed, len(hashed)):
            self._hash(number, hashed[number], lane)
            sound &= window.is_sound(number)
        changed = self.plan.changed if self.divisor is None else self.plan.sums
        return sound and all(self._close(window, window.at(kept)) for kept in changed)

    def _take(self, window: _Window, hashed: Sequence[Array], lane: int) -> bool:
        """Hash a window of all files, and take one of them as it is."""
        sound = True
        for number, numbers in enumerate(hashed):
            self._hash(number, numbers, lane)
            sound &= not window.stretch.is_float or window.is_sound(number)
        if not window.stretch.is_float:
            for kept, number in self.plan.firsts:
                window.at(kept)[:] = window.held[number]
        elif self.sole is not None and self.divisor is not None:
            held = window.stretch.held(self.sole)
            window.at(self.plan.sums[0])[:] = held[window.part]
        return sound

    def _hash(self, number: int, numbers: Array, lane: int) -> None:
        if (number + 1) % self.lanes == lane:
            self.hashers[number].update(numbers.data)

    def _close(self, window: _Window, total: Array) -> bool:
        """Look for non-finite numbers in a sum; with a divisor, make it the mean first."""
        if self.divisor is not None:
            window.close(total, self.divisor)
        if np.isfinite(total).all():
            return True
        if not window.stretch.is_compressed:  # we check compressed ones as we decode them
            numbers = range(len(self.plan.files))
            if not all(is_sound(window.held[number], window.base) for number in numbers):
                return False
        return window.keep_constants(total, closed=self.divisor is not None)
