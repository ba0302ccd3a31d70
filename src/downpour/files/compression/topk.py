"""The largest 64 of every 4,096 numbers, at two bits each; later updates send the rest.

SparseLoCo (Sarfi et al. 2025, https://arxiv.org/abs/2508.15706): top-k in chunks of 4,096 with 64
kept, two bits per value and twelve bits per index. The error memory decays by 0.95 per round, as in
Covenant-72B (https://arxiv.org/abs/2603.08163), and takes the place of outer momentum. A tensor's
last chunk may be shorter, and keeps one number in 64, but at least one.

The meaning of the two bits is our reading: the sign, and whether the magnitude is at least the mean
of the kept ones. We send each half as its own mean. Each chunk has its own two levels, in bfloat16.
It also has a count, because it may have fewer than 64 non-zero numbers. With these, a chunk takes
117 bytes. That is 140 times fewer than its 16,384 bytes. The paper's factor 146 only counts values
and indices.
"""

from __future__ import annotations

from typing import Any, ClassVar, TypeAlias

import numpy as np

from downpour.files.compression.base import BlockCodec, Bytes, Numbers
from downpour.files.compression.rounding import BFLOAT16_MAX, from_bfloat16, to_bfloat16

_CHUNK = 4096
_KEPT = 64
_COUNT_BYTES, _LEVELS_BYTES = 1, 4
_VALUES_AT = _COUNT_BYTES + _LEVELS_BYTES

_Integers: TypeAlias = np.ndarray[Any, np.dtype[np.integer[Any]]]
_Flags: TypeAlias = np.ndarray[Any, np.dtype[np.bool_]]

_LARGE, _NEGATIVE = 1, 2
"""The two bits of a value."""


class TopK(BlockCodec):
    """A record: the count, the two levels, four values per byte, two indices in three bytes.

    Indices rise; unused places are zeros.
    """

    block = _CHUNK
    feedback: ClassVar[float] = 0.95

    def _record_bytes(self, count: int) -> int:
        kept = _kept(count)
        return _VALUES_AT - (-kept // 4) + _indices_bytes(count)

    def _encode_blocks(self, numbers: Numbers) -> Bytes:
        rows, count = numbers.shape
        sent = _largest(np.abs(numbers), _kept(count))
        row, index = np.nonzero(sent)
        counts = np.bincount(row, minlength=rows)
        slot = np.arange(len(row)) - np.repeat(np.cumsum(counts) - counts, counts)
        values = numbers[row, index]
        levels, large = _levels(np.abs(values), row, rows)
        bits = large * _LARGE + (values < 0) * _NEGATIVE
        return np.concatenate(
            [
                counts.astype(np.uint8)[:, None],
                levels.view(np.uint8),
                _packed_values(_placed(bits, row, slot, rows, count)),
                _packed_indices(_placed(index, row, slot, rows, count))[:, : _indices_bytes(count)],
            ],
            axis=1,
        )

    def _decode_blocks(self, records: Bytes, out: Numbers) -> None:
        count = out.shape[1]
        kept = _kept(count)
        values_end = _VALUES_AT - (-kept // 4)
        levels = from_bfloat16(records[:, _COUNT_BYTES:_VALUES_AT].copy().view("<u2"))
        bits = _unpacked_values(records[:, _VALUES_AT:values_end])[:, :kept]
        index = _unpacked_indices(records[:, values_end:])[:, :kept]
        sent = np.arange(kept) < records[:, :1]
        magnitude = np.take_along_axis(levels, (bits & _LARGE).astype(np.intp), axis=1)
        values = np.where(bits & _NEGATIVE, -magnitude, magnitude)
        out[:] = 0
        wrong = (records[:, 0] > kept) | (sent & (index >= count)).any(axis=1)
        row, slot = np.nonzero(sent & ~wrong[:, None])
        out[row, index[row, slot]] = values[row, slot]
        out[wrong] = np.nan


def _kept(count: int) -> int:
    return -(-count * _KEPT // _CHUNK)


def _indices_bytes(count: int) -> int:
    return -(-_kept(count) * 3 // 2)


def _largest(magnitudes: Numbers, kept: int) -> _Flags:
    """Choose the `kept` largest non-zero numbers of each row; of equal ones, the first."""
    # We choose by value, because `argpartition` does not choose the same ones among equal numbers
    # on all machines.
    place = magnitudes.shape[1] - kept
    least = np.partition(magnitudes, place, axis=1)[:, place, None]
    above = magnitudes > least
    equal = (magnitudes == least) & (least > 0)
    room = kept - above.sum(axis=1, keepdims=True)
    chosen: _Flags = above | (equal & (np.cumsum(equal, axis=1) <= room))
    return chosen


def _levels(
    magnitudes: Numbers, row: _Integers, rows: int
) -> tuple[np.ndarray[Any, np.dtype[np.uint16]], _Flags]:
    """Return the levels [rows, 2] as bfloat16, and which magnitudes belong to the upper one."""
    mean = _means(magnitudes, row, rows)
    large = magnitudes >= mean[row]
    small = ~large
    low = _means(magnitudes[small], row[small], rows)
    high = _means(magnitudes[large], row[large], rows)
    levels = np.minimum(np.stack([low, high], axis=1), BFLOAT16_MAX)
    return to_bfloat16(levels.astype(np.float32)), large


def _means(magnitudes: Numbers, row: _Integers, rows: int) -> np.ndarray[Any, np.dtype[np.float64]]:
    # `bincount` adds one number after another, so its sums are the same everywhere.
    totals = np.bincount(row, magnitudes.astype(np.float64), minlength=rows)
    return totals / np.maximum(np.bincount(row, minlength=rows), 1)


def _placed(values: _Integers, row: _Integers, slot: _Integers, rows: int, count: int) -> _Integers:
    """Return [rows, kept rounded up to 4]: the values in their slots, zeros elsewhere."""
    placed = np.zeros((rows, -(-_kept(count) // 4) * 4), np.int64)
    placed[row, slot] = values
    return placed


def _packed_values(values: _Integers) -> Bytes:
    fours = values.reshape(len(values), -1, 4) << np.arange(0, 8, 2)
    packed: Bytes = fours.sum(axis=2).astype(np.uint8)
    return packed


def _unpacked_values(packed: Bytes) -> _Integers:
    fours = packed[:, :, None] >> np.arange(0, 8, 2, dtype=np.uint8)
    return (fours & 3).reshape(len(packed), -1)


def _packed_indices(index: _Integers) -> Bytes:
    pairs = index.reshape(len(index), -1, 2)
    joined = pairs[:, :, 0] | (pairs[:, :, 1] << 12)
    packed = (joined[:, :, None] >> np.arange(0, 24, 8)) & 255
    return packed.reshape(len(index), -1).astype(np.uint8)


def _unpacked_indices(packed: Bytes) -> _Integers:
    padded = np.pad(packed, ((0, 0), (0, -packed.shape[1] % 3))).astype(np.int64)
    threes = padded.reshape(len(packed), -1, 3)
    joined = threes[:, :, 0] | (threes[:, :, 1] << 8) | (threes[:, :, 2] << 16)
    return np.stack([joined & 0xFFF, joined >> 12], axis=2).reshape(len(packed), -1)


TOPK = TopK()
