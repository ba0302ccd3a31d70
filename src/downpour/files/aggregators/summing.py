"""The hot loop: sums many mapped files into one, hashing every byte while it is in the cache.

What is summed is how far each file is from a base, the model that all of them were trained from:
x0 - Σ w_i (x0 - x_i). Where files agree with the base that is exact, so what is not trained never
moves; and only small numbers are rounded on the way, which about halves the error of Σ w_i x_i.
The differences are taken from the base, and their sum from it again, because only so does a
negative zero stay one.

A compressed update holds the difference x0 - x_i itself, which is decoded where it is added.

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
from typing import Self

import numpy as np
import xxhash

from downpour.files.compression import STRIDE, Codec
from downpour.files.store import Array, HeldRange, UpdateFormat

PIECE_BYTES = 512 * 1024
"""What a thread sums at a time: the sum, a term and the pieces of base and file fit its cache."""

FILES_AT_ONCE = 64
"""How many files are mapped: each holds a descriptor, of which a process has about a thousand."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SummedFile:
    """A file to be summed: the bytes before its tensors, the tensors' bytes (uint8), its factor."""

    head: memoryview
    data: Array
    factor: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class AddedFiles:
    """What is known after some files were added: their checksums; whether all of it is sound.

    Sound are numbers that are finite, in a file with factor 0, too, and in the sum; and those that
    are not, where the base has the same ones.
    """

    checksums: tuple[str, ...]
    sound: bool


def is_sound(numbers: Array, base: Array) -> bool:
    """Say whether a file's floats can be used: finite, or what the base has and is not finite."""
    same = _bits(numbers) == _bits(base)
    return bool(np.all(same | (np.isfinite(numbers) & np.isfinite(base))))


class RunningSum:
    """A weighted mean of files that share a layout, taken a group of files at a time.

    It holds one model in memory however many files come (float16 is summed in float32, for which it
    holds twice its size more). float64 is summed as it is and numbers that are no floats are taken
    from the first file. A file that has all the weight is taken as it is.

    Args:
        form: Where the tensors lie in the model and in every file.
        base: The model from which all files were trained; its factor does not matter.
        divisor: What the sum is divided by in the end.
        threads: How many threads share the work.
    """

    def __init__(
        self, form: UpdateFormat, base: SummedFile, *, divisor: float = 1.0, threads: int = 1
    ) -> None:
        self._layout = form.model
        self._base = base
        self._base_hasher = xxhash.xxh3_128(base.head)
        self._divisor = divisor
        self._data = np.empty(form.model.size_bytes, np.uint8)
        self._runs = [_Run.within(self._data, place) for place in form.ranges()]
        self._lanes = threads if form.model.size_bytes > PIECE_BYTES else 1
        self._is_empty = True
        self._sole: SummedFile | None = None

    @property
    def base_checksum(self) -> str:
        """The base's checksum, which is known once the first files were added."""
        return self._base_hasher.hexdigest()

    def add(self, sources: Sequence[SummedFile], *, is_last: bool = True) -> AddedFiles:
        """Add the next files, each times its factor; with the last ones the mean is made."""
        if self._sole is None:  # factors sum to the divisor
            self._sole = next((one for one in sources if one.factor == self._divisor), None)
        group = _Group(
            sources,
            base=self._base,
            base_hasher=self._base_hasher if self._is_empty else None,
            sole=self._sole,
            divisor=self._divisor if is_last else None,
            lanes=self._lanes,
        )
        if self._lanes == 1:
            sound = [group.sum_lane(self._runs, 0)]
        else:
            with ThreadPoolExecutor(self._lanes) as pool:
                sound = list(pool.map(partial(group.sum_lane, self._runs), range(self._lanes)))
        self._is_empty = False
        return AddedFiles(checksums=group.checksums(), sound=all(sound))

    def tensors(self) -> dict[str, Array]:
        """Return the mean as tensors by name, views of one buffer."""
        for run in self._runs:
            if run.total is not run.result:
                run.result[:] = run.total
        return self._layout.views(self._data)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Run:
    """A stretch of the tensors' bytes that is held alike; `total` is what is summed in."""

    place: HeldRange
    result: Array
    total: Array

    @classmethod
    def within(cls, data: Array, place: HeldRange) -> Self:
        result = data[place.start : place.stop].view(place.dtype)
        narrow = result.dtype.kind == "f" and result.itemsize < 4
        total = np.empty(result.shape, np.float32) if narrow else result
        return cls(place=place, result=result, total=total)

    @property
    def is_float(self) -> bool:
        return self.result.dtype.kind == "f"

    @property
    def is_compressed(self) -> bool:
        return self.place.codec is not None

    @property
    def step(self) -> int:
        """How many numbers a thread sums at a time."""
        step = PIECE_BYTES // self.total.itemsize
        return max(STRIDE, step - step % STRIDE) if self.is_compressed else step

    def base(self, source: SummedFile) -> Array:
        """Return the numbers of the model."""
        return source.data[self.place.start : self.place.stop].view(self.place.dtype)

    def held(self, source: SummedFile) -> Array:
        """Return what an update holds: numbers, or bytes that are to be decoded."""
        held = source.data[self.place.held_start : self.place.held_stop]
        return held if self.is_compressed else held.view(self.place.dtype)

    def cut(self, part: slice, *, with_padding: bool = False) -> slice:
        """Return where an update holds some numbers of a stretch, which begin at the stride."""
        codec = self.place.codec
        if codec is None:
            return part
        is_end = with_padding and part.stop >= len(self.total)
        return slice(codec.size(part.start), None if is_end else codec.size(part.stop))


@dataclass(frozen=True, slots=True)
class _Piece:
    """One thread's part of a window: the base's floats, the sum so far, room for a term.

    Where updates are compressed, they are decoded into `difference`, which may be that room.
    """

    base: Array
    total: Array
    term: Array
    difference: Array

    def add(self, numbers: Array, factor: float) -> None:
        """Add how far the base is from a file's numbers, times a factor."""
        np.subtract(self.base, numbers, out=self.term, dtype=self.term.dtype)
        self._add(self.term, factor)

    def decode(self, codec: Codec, held: Array) -> bool:
        """Make `difference` of what an update holds; return whether all of it is finite."""
        codec.decode(held, self.difference)
        return bool(np.isfinite(self.difference).all())

    def add_difference(self, factor: float) -> None:
        """Add what was decoded, times a factor."""
        self._add(self.difference, factor)

    def _add(self, difference: Array, factor: float) -> None:
        if factor != 1:
            difference = np.multiply(difference, factor, out=self.term)
        np.add(self.total, difference, out=self.total)

    def close(self, divisor: float) -> None:
        """Turn the sum of all differences into the mean of the files."""
        if divisor != 1:
            np.divide(self.total, divisor, out=self.total)
        np.subtract(self.base, self.total, out=self.total, dtype=self.total.dtype)

    def keep_constants(self, *, closed: bool) -> bool:
        """Let what is not finite in the base stay as it is; return whether all else is finite."""
        constant = ~np.isfinite(self.base)
        np.copyto(self.total, self.base if closed else 0, where=constant)
        return bool((np.isfinite(self.total) | constant).all())


class _Group:
    """One pass over some files. Lanes share nothing but what they read and their own hashers.

    The first group begins the sum and hashes the base; the last one has a divisor and makes the
    mean. Where one file has all the weight there is nothing to sum.
    """

    def __init__(
        self,
        sources: Sequence[SummedFile],
        *,
        base: SummedFile,
        base_hasher: xxhash.xxh3_128 | None,
        sole: SummedFile | None,
        divisor: float | None,
        lanes: int,
    ) -> None:
        self._sources = sources
        self._hashers = [xxhash.xxh3_128(source.head) for source in sources]
        self._base = base
        self._base_hasher = base_hasher
        self._sole = sole
        self._divisor = divisor
        self._lanes = lanes

    def checksums(self) -> tuple[str, ...]:
        return tuple(hasher.hexdigest() for hasher in self._hashers)

    def sum_lane(self, runs: Sequence[_Run], lane: int) -> bool:
        """Do one thread's share of all runs; return whether all it saw is sound."""
        # Overflow and NaN are looked for by hand; numpy's warnings would only repeat it.
        with np.errstate(all="ignore"):
            sound = [self._sum_run(run, lane) for run in runs]
        return all(sound)

    def _sum_run(self, run: _Run, lane: int) -> bool:
        base, files = run.base(self._base), [run.held(source) for source in self._sources]
        count, step = len(run.total), run.step
        room = _room(run, min(step, count))
        sound = True
        for window in range(0, count, step * self._lanes):
            whole = slice(window, window + step * self._lanes)
            begin = min(window + lane * step, count)
            part = slice(begin, min(begin + step, count))
            term, difference = (numbers[: part.stop - begin] for numbers in room)
            piece = _Piece(base[part], run.total[part], term, difference)
            if self._base_hasher is not None:
                piece.total.fill(0)
                if lane == 0:
                    self._base_hasher.update(base[whole].data)
            hashed, held = run.cut(whole, with_padding=True), run.cut(part)
            for index, numbers in enumerate(files):
                if (index + 1) % self._lanes == lane:
                    self._hashers[index].update(numbers[hashed].data)
                if run.is_float:
                    sound &= self._add(run, piece, numbers[held], self._sources[index].factor)
                elif index == 0 and self._base_hasher is not None:
                    piece.total[:] = numbers[part]
            if run.is_float:
                sound &= self._close(run, part, piece)
        return sound

    def _add(self, run: _Run, piece: _Piece, held: Array, factor: float) -> bool:
        if run.place.codec is not None:
            sound = piece.decode(run.place.codec, held)
            if factor:
                piece.add_difference(factor)
            return sound
        if factor and self._sole is None:
            piece.add(held, factor)
            return True  # it shows in the sum
        return bool(np.isfinite(held).all()) or is_sound(held, piece.base)

    def _close(self, run: _Run, part: slice, piece: _Piece) -> bool:
        if self._divisor is not None:
            if self._sole is not None and not run.is_compressed:
                piece.total[:] = run.held(self._sole)[part]
                return True
            piece.close(self._divisor)
        if np.isfinite(piece.total).all():
            return True
        return self._are_sound(run, part, piece) and piece.keep_constants(
            closed=self._divisor is not None
        )

    def _are_sound(self, run: _Run, part: slice, piece: _Piece) -> bool:
        """Say whether nothing in the files is the cause of a sum that is not finite."""
        if run.is_compressed:
            return True  # each was looked at when it was added
        return all(is_sound(run.held(source)[part], piece.base) for source in self._sources)


def _room(run: _Run, count: int) -> tuple[Array, Array]:
    """Return room for a term of a sum, and for a decoded difference."""
    term = np.empty(count, run.total.dtype)
    if not run.is_compressed or term.dtype == np.float32:
        return term, term
    return term, np.empty(count, np.float32)


def _bits(numbers: Array) -> Array:
    return numbers.view(f"u{numbers.itemsize}")
