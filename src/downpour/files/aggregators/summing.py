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
"""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

import numpy as np
import xxhash

from downpour.files.aggregators.additions import (
    Additions,
    AddTerms,
    Combine,
    LoadFile,
    PartialSum,
    Place,
    Step,
    SummedFile,
)
from downpour.files.compression import STRIDE
from downpour.files.store import Array, HeldRange, UpdateFormat

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
        combine: Combine | None = None,
    ) -> AddedFiles:
        """Add files and sums to each other; this changes the sums.

        Args:
            steps: The additions, see `Additions`.
            others: Files to read but not to add. They count with factor 0, but must be sound.
            divisor: The divisor that makes the only remaining sum the mean of files; absent until
                the sum is whole.
            sole: The file that has all the weight, if there is one: we take it as it is.
            combine: The statistic that replaces all additions, if there is one.
        """
        new_sum = partial(PartialSum, self._layout, self._ranges)
        if combine is None:
            plan = Additions.of(steps, new_sum)
        else:
            plan = Additions.combined(steps, combine, new_sum)
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
        if self._lanes == 1:
            sound = [job.sum_lane(self._ranges, 0)]
        else:
            with ThreadPoolExecutor(self._lanes) as pool:
                sound = list(pool.map(partial(job.sum_lane, self._ranges), range(self._lanes)))
        self._hashes_base = False
        checksums = tuple(hasher.hexdigest() for hasher in job.hashers)
        return AddedFiles(sums=tuple(plan.sums), checksums=checksums, sound=all(sound))


def _cut(place: HeldRange, part: slice, *, with_padding: bool = False) -> slice:
    """Return where an update holds some numbers of a range; they begin at a multiple of STRIDE."""
    if place.codec is None:
        return part
    is_end = with_padding and part.stop >= place.count
    stop = None if is_end else place.codec.size(part.stop)
    return slice(place.codec.size(part.start), stop)


@dataclass(frozen=True, slots=True)
class _Window:
    """One thread's part of a window: the base's numbers, and the files' content.

    If updates are compressed, we decode them into `decoded`.
    """

    place: HeldRange
    part: slice
    base: Array
    held: Sequence[Array]
    pieces: Array
    decoded: Array

    def at(self, place: Place) -> Array:
        """Return the numbers at a place."""
        if isinstance(place, int):
            piece: Array = self.pieces[place]
            return piece[: len(self.base)]
        return place.totals[self.place][self.part]

    def load(self, number: int, factor: float, place: Place) -> bool:
        """Write a file's difference to a place; return False if it is known to be unsound."""
        difference, sound = self.at(place), True
        if self.place.codec is not None:
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
        if self.place.codec is not None:
            return bool(np.isfinite(self._decoded(number)).all())
        held = self.held[number]
        return bool(np.isfinite(held).all()) or is_sound(held, self.base)

    def are_sound(self) -> bool:
        """Say whether the numbers of all files are usable; we check compressed ones on decoding."""
        is_compressed = self.place.codec is not None
        return is_compressed or all(is_sound(held, self.base) for held in self.held)

    def combine(self, combine: Combine, total: Array) -> bool:
        """Write a statistic of all pieces; return False if a file is unsound."""
        there = self.pieces[:, : len(self.base)]
        if not np.isfinite(there).all():  # even if the statistic leaves such numbers out
            if not self.are_sound():
                return False
            there[:, ~np.isfinite(self.base)] = 0
        total[:] = combine(there)
        total += 0  # a statistic may return -0, which would change a base of -0
        return True

    def _decoded(self, number: int) -> Array:
        codec, decoded = self.place.codec, self.decoded[: len(self.base)]
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

    def sum_lane(self, places: Sequence[HeldRange], lane: int) -> bool:
        """Do one thread's share of all ranges; return whether all it saw is sound."""
        # We look for overflow and NaN ourselves; numpy's warnings would only repeat that.
        with np.errstate(all="ignore"):
            sound = [self._sum_range(place, lane) for place in places]
        return all(sound)

    def _sum_range(self, place: HeldRange, lane: int) -> bool:
        base, count = place.numbers(self.base.data), place.count
        files = [place.held(source.data) for source in self.plan.files]
        # How many numbers a thread sums at a time.
        step = max(1, PIECE_BYTES // max(1, self.plan.pieces) // place.sum_dtype.itemsize)
        if place.codec is not None:
            step = max(STRIDE, step - step % STRIDE)
        most = min(step, count)
        pieces = np.empty((self.plan.pieces, most), place.sum_dtype)
        decoded = np.empty(0 if place.codec is None else most, np.float32)
        sound = True
        for begin in range(0, count, step * self.lanes):
            whole = slice(begin, begin + step * self.lanes)
            start = min(begin + lane * step, count)
            part = slice(start, min(start + step, count))
            held = [file[_cut(place, part)] for file in files]
            window = _Window(place, part, base[part], held, pieces, decoded)
            if self.base_hasher is not None and lane == 0:
                self.base_hasher.update(base[whole].data)
            hashed = _cut(place, whole, with_padding=True)
            sound &= self._add(window, [file[hashed] for file in files], lane)
        return sound

    def _add(self, window: _Window, hashed: Sequence[Array], lane: int) -> bool:
        """Hash and add a window of all files; return whether all is sound."""
        place = window.place
        takes_one = self.sole is not None and place.codec is None
        if takes_one or place.dtype.kind != "f":
            return self._take(window, hashed, lane)
        sound = True
        for operation in self.plan.operations:
            if isinstance(operation, LoadFile):
                number = operation.file
                self._hash(number, hashed[number], lane)
                factor = self.plan.files[number].factor
                sound &= window.load(number, factor, operation.place)
            elif isinstance(operation, AddTerms):
                left, right = window.at(operation.left), window.at(operation.right)
                np.add(left, right, out=window.at(operation.into))
            else:
                sound &= window.combine(operation.combine, window.at(operation.into))
        for number in range(self.plan.summed, len(hashed)):
            self._hash(number, hashed[number], lane)
            sound &= window.is_sound(number)
        changed = self.plan.changed if self.divisor is None else self.plan.sums
        return sound and all(self._close(window, window.at(kept)) for kept in changed)

    def _take(self, window: _Window, hashed: Sequence[Array], lane: int) -> bool:
        """Hash a window of all files, and take one of them as it is."""
        sound, is_float = True, window.place.dtype.kind == "f"
        for number, numbers in enumerate(hashed):
            self._hash(number, numbers, lane)
            sound &= not is_float or window.is_sound(number)
        if not is_float:
            for kept, number in self.plan.firsts:
                window.at(kept)[:] = window.held[number]
            if self.plan.combines:  # the lower median of numbers that have no mean
                ascending = np.sort(window.held, axis=0)
                window.at(self.plan.sums[0])[:] = ascending[(len(ascending) - 1) // 2]
        elif self.sole is not None and self.divisor is not None:
            held = window.place.held(self.sole.data)
            window.at(self.plan.sums[0])[:] = held[window.part]
        return sound

    def _hash(self, number: int, numbers: Array, lane: int) -> None:
        if (number + 1) % self.lanes == lane:
            self.hashers[number].update(numbers.data)

    def _close(self, window: _Window, total: Array) -> bool:
        """Return whether a sum is sound; with a divisor, first make it the mean of the files.

        The base's non-finite numbers stay.
        """
        base, is_mean = window.base, self.divisor is not None
        if self.divisor is not None:
            if self.divisor != 1:
                np.divide(total, self.divisor, out=total)
            np.subtract(base, total, out=total, dtype=total.dtype)
        if np.isfinite(total).all():
            return True
        if not window.are_sound():
            return False
        constant = ~np.isfinite(base)
        np.copyto(total, base if is_mean else 0, where=constant)
        return bool((np.isfinite(total) | constant).all())
