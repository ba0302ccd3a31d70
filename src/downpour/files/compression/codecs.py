"""Codecs that write each number with fewer bits, or only the largest numbers."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, TypeAlias

import numpy as np

from downpour.base.errors import NonFinite
from downpour.files.compression import BlockCodec, Bytes, Numbers, check_finite

_HALF = np.uint32(0x7FFF)
BFLOAT16_MAX = np.uint32(0x7F7F0000).view(np.float32)
"""The largest number that is finite."""


@dataclass(frozen=True, slots=True)
class _Float:
    """Floats of a type that numpy has."""

    dtype: str
    feedback: ClassVar[None] = None

    def size(self, count: int) -> int:
        return count * np.dtype(self.dtype).itemsize

    def encode(self, numbers: Numbers) -> Bytes:
        check_finite(numbers)
        with np.errstate(over="ignore"):
            encoded = numbers.astype(self.dtype)
        if not np.isfinite(encoded).all():
            raise NonFinite("a difference is too large for float16")
        return encoded.view(np.uint8)

    def decode(self, encoded: Bytes, out: Numbers) -> None:
        out[:] = encoded.view(self.dtype)


class _BFloat16:
    """The upper half of float32.

    bfloat16 has float32's range and 8 significant bits, float16 11 bits and less range (IEEE 754;
    Kalamkar et al. 2019, https://arxiv.org/abs/1905.12322). numpy has no bfloat16, so we make its
    bits here, rounded to nearest, ties to even.
    """

    feedback = None

    def size(self, count: int) -> int:
        return 2 * count

    def encode(self, numbers: Numbers) -> Bytes:
        check_finite(numbers)
        encoded = to_bfloat16(numbers)
        if not np.isfinite(from_bfloat16(encoded)).all():
            raise NonFinite("a difference is too large for bfloat16")
        return encoded.view(np.uint8)

    def decode(self, encoded: Bytes, out: Numbers) -> None:
        # We write straight into place: the lower halves are zeros.
        bits = out.view(np.uint32)
        np.left_shift(encoded.view("<u2"), np.uint32(16), out=bits, dtype=np.uint32)


FLOAT32, BFLOAT16, FLOAT16 = _Float("<f4"), _BFloat16(), _Float("<f2")


def to_bfloat16(numbers: Numbers) -> np.ndarray[tuple[int, ...], np.dtype[np.uint16]]:
    """Return the bits of finite numbers, rounded to nearest, ties to even."""
    bits = np.ascontiguousarray(numbers).view(np.uint32)
    odd = (bits >> np.uint32(16)) & np.uint32(1)
    return ((bits + (_HALF + odd)) >> np.uint32(16)).astype("<u2")


def from_bfloat16(bits: np.ndarray[tuple[int, ...], np.dtype[np.uint16]]) -> Numbers:
    """Return the numbers of these bits."""
    return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)


_SCALE_BYTES = 4
_LARGEST = 127
# So that the largest code times the scale is finite for every block.
_SCALE_MAX = np.nextafter(np.finfo(np.float32).max / np.float32(_LARGEST), np.float32(0))


class Int8(BlockCodec):
    """A record is the scale (float32), then a signed byte per number.

    Block-wise quantization (Dettmers et al. 2022, https://arxiv.org/abs/2110.02861, section 2.1)
    with its block of 2,048: one outlier costs precision in its own block only. The code is linear
    and symmetric, so that zero stays zero, and the scale is the block's largest magnitude over 127.
    INTELLECT-1 (Jaghouar et al. 2024, https://arxiv.org/abs/2412.01152) sends its differences in
    int8, too, and keeps no error either: a number loses at most 1/254 of the block's largest.
    """

    block = 2048
    feedback: ClassVar[None] = None

    def _record_bytes(self, count: int) -> int:
        return _SCALE_BYTES + count

    def _encode_blocks(self, numbers: Numbers) -> Bytes:
        scale = np.abs(numbers).max(axis=1, keepdims=True) / np.float32(_LARGEST)
        scale = np.minimum(scale, _SCALE_MAX).astype("<f4")
        # A block of zeros, or of numbers too small to have a scale, becomes zeros.
        codes = np.rint(numbers / np.where(scale > 0, scale, np.float32(np.inf)))
        signed = np.clip(codes, -_LARGEST, _LARGEST).astype(np.int8)
        return np.concatenate([scale.view(np.uint8), signed.view(np.uint8)], axis=1)

    def _decode_blocks(self, records: Bytes, out: Numbers) -> None:
        scale = records[:, :_SCALE_BYTES].copy().view("<f4")
        np.multiply(records[:, _SCALE_BYTES:].view(np.int8), scale, out=out, dtype=np.float32)


INT8 = Int8()


_THRESHOLD = 0.7


class Ternary(BlockCodec):
    """A record is the scale (float32), then the words of `TERNGRAD`, five digits in each.

    TernGrad (Wen et al. 2017, https://arxiv.org/abs/1705.07878) draws which numbers become zero.
    Here, the numbers below 0.7 of their block's mean magnitude become zero, and the scale is the
    mean magnitude of the others. That is the code of Ternary Weight Networks (Li et al. 2016,
    https://arxiv.org/abs/1605.04711), the best such code for normally distributed numbers. So this
    codec draws nothing. It keeps the residual and adds it to the next round's numbers (Karimireddy
    et al. 2019, https://arxiv.org/abs/1901.09847, algorithm 2). Without the residual, a biased code
    need not converge.
    """

    block = 2048
    feedback: ClassVar[float] = 1.0

    def _record_bytes(self, count: int) -> int:
        return _SCALE_BYTES + TERNGRAD.words(count)

    def _encode_blocks(self, numbers: Numbers) -> Bytes:
        magnitudes = np.abs(numbers).astype(np.float64)
        cut = _THRESHOLD * magnitudes.mean(axis=1, keepdims=True)
        sent = (magnitudes >= cut) & (magnitudes > 0)
        total = np.where(sent, magnitudes, 0).sum(axis=1, keepdims=True)
        scale = (total / np.maximum(sent.sum(axis=1, keepdims=True), 1)).astype("<f4")
        packed = TERNGRAD.packed(np.sign(numbers) * sent)
        return np.concatenate([scale.view(np.uint8), packed], axis=1)

    def _decode_blocks(self, records: Bytes, out: Numbers) -> None:
        scale = records[:, :_SCALE_BYTES].copy().view("<f4")
        np.multiply(TERNGRAD.unpacked(records[:, _SCALE_BYTES:], out.shape[1]), scale, out=out)


TERNARY = Ternary()


_HALF_SCALE_BYTES = 2
_BLOCK = 128
_PLACES = np.arange(_BLOCK, dtype=np.uint32) * np.uint32(0x9E3779B9)
"""A different number for each place of a block: multiples of 2 ** 32 over the golden ratio."""

_Words: TypeAlias = np.ndarray[Any, np.dtype[np.uint16]]


@dataclass(frozen=True)
class Stochastic(BlockCodec):
    """A record is the scale (bfloat16), then the packed codes, the first one lowest.

    A number y between two levels becomes the upper one with a probability equal to its distance
    from the lower one: E[code] = y. The loss is noise, which later numbers make up for, as they do
    for a batch's gradient noise. So we keep no error. QSGD (Alistarh et al. 2017,
    https://arxiv.org/abs/1610.02132, section 3.1) does this with levels between zero and a norm,
    TernGrad (Wen et al. 2017, https://arxiv.org/abs/1705.07878, section 3) with three levels:
    minus, zero or plus the largest magnitude. Here the largest magnitude is that of a block of 128,
    because a tensor's outlier would turn all its other numbers into noise.

    The random numbers depend only on the numbers of the block: equal numbers have equal bytes on
    every machine, and different shards draw differently.

    Args:
        largest: Codes are -largest to largest.
        base: A word is a number with this base; each of its digits is a code.
        together: How many codes make a word.
        word_bits: The size of a word, 8 or 12; we pack words without gaps.
    """

    largest: int
    base: int
    together: int
    word_bits: int
    block: ClassVar[int] = _BLOCK
    feedback: ClassVar[None] = None

    def _record_bytes(self, count: int) -> int:
        return _HALF_SCALE_BYTES - (-self.words(count) * self.word_bits // 8)

    def words(self, count: int) -> int:
        """Return how many words the codes of `count` numbers take."""
        return -(-count // self.together)

    def _encode_blocks(self, numbers: Numbers) -> Bytes:
        scale = self._scale(np.abs(numbers).max(axis=1, keepdims=True))
        codes = np.divide(numbers, np.where(scale > 0, scale, np.float32(np.inf)))
        codes += _drawn(numbers)
        np.floor(codes, out=codes)
        np.clip(codes, -self.largest, self.largest, out=codes)
        halves = (scale.view(np.uint32) >> np.uint32(16)).astype("<u2")
        return np.concatenate([halves.view(np.uint8), self.packed(codes)], axis=1)

    def _decode_blocks(self, records: Bytes, out: Numbers) -> None:
        scale = from_bfloat16(records[:, :_HALF_SCALE_BYTES].copy().view("<u2"))
        np.multiply(self.unpacked(records[:, _HALF_SCALE_BYTES:], out.shape[1]), scale, out=out)

    def _scale(self, largest: Numbers) -> Numbers:
        """Return scales that bfloat16 can hold, with which no number is beyond the last code.

        A scale is zero if bfloat16 has few digits left: then the whole block becomes zeros.
        """
        finite = np.minimum(largest / np.float32(self.largest), self._scale_max)
        up = (finite.view(np.uint32) + np.uint32(0xFFFF)) & np.uint32(0xFFFF0000)
        scale: Numbers = np.minimum(up.view(np.float32), self._scale_max)
        scale[scale < np.finfo(np.float32).tiny] = 0
        return scale

    @cached_property
    def _scale_max(self) -> np.float32:
        """The largest scale with which the last code is finite."""
        most = np.float32(np.finfo(np.float32).max / np.float32(self.largest))
        return (most.view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32)

    def packed(self, codes: Numbers) -> Bytes:
        """Return the words of codes [m, n], packed."""
        rows, count = codes.shape
        digits = np.full((rows, self.words(count) * self.together), self.largest, np.uint16)
        digits[:, :count] = codes + np.float32(self.largest)
        words = digits[:, :: self.together].copy()
        for place in range(1, self.together):
            words += digits[:, place :: self.together] * np.uint16(self.base**place)
        return self._packed(words)

    def unpacked(self, packed: Bytes, count: int) -> Numbers:
        """Return the codes [m, count] of packed words, NaN for words that we never write."""
        words = self._unpacked(packed, self.words(count))
        return self._table.take(words, axis=0).reshape(len(packed), -1)[:, :count]

    @cached_property
    def _table(self) -> Numbers:
        """The codes [2 ** word_bits, together] of each word, NaN for words that we never write."""
        words = np.arange(2**self.word_bits, dtype=np.int64)[:, None]
        digits = words // self.base ** np.arange(self.together)
        digits[:, :-1] %= self.base
        table = (digits - self.largest).astype(np.float32)
        table[(digits > 2 * self.largest).any(axis=1)] = np.nan
        return table

    def _packed(self, words: _Words) -> Bytes:
        if self.word_bits == 8:
            return words.astype(np.uint8)
        rows, count = words.shape
        packed = np.zeros((rows, -(-count // 2) * 3), np.uint8)
        first, second = words[:, ::2], words[:, 1::2]
        packed[:, ::3] = first
        packed[:, 1::3] = first >> np.uint16(8)
        packed[:, 1 : second.shape[1] * 3 : 3] |= (second << np.uint16(4)).astype(np.uint8)
        packed[:, 2 : second.shape[1] * 3 : 3] = second >> np.uint16(4)
        return packed[:, : -(-count * self.word_bits // 8)]

    def _unpacked(self, packed: Bytes, count: int) -> _Words | Bytes:
        if self.word_bits == 8:
            return packed
        words = np.empty((len(packed), count), np.uint16)
        middle = packed[:, 1::3].astype(np.uint16)
        words[:, ::2] = packed[:, ::3] | ((middle & np.uint16(15)) << np.uint16(8))
        pairs = count // 2
        high = packed[:, 2::3].astype(np.uint16) << np.uint16(4)
        words[:, 1::2] = (middle[:, :pairs] >> np.uint16(4)) | high[:, :pairs]
        return words


def _drawn(numbers: Numbers) -> Numbers:
    """Return numbers [m, n] from 0 to below 1, which follow from the numbers of each row."""
    bits = np.ascontiguousarray(numbers).view(np.uint32)
    mixed = bits.sum(axis=1, keepdims=True, dtype=np.uint32) + _PLACES[: numbers.shape[1]]
    # The finalizer of MurmurHash3, which spreads every bit over all others.
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
        mixed ^= mixed >> np.uint32(shift)
        mixed *= np.uint32(factor)
    mixed >>= np.uint32(8)
    drawn: Numbers = mixed.astype(np.float32)
    drawn *= np.float32(2**-24)
    return drawn


INT3 = Stochastic(largest=3, base=8, together=4, word_bits=12)
TERNGRAD = Stochastic(largest=1, base=3, together=5, word_bits=8)


_CHUNK = 4096
_KEPT = 64
_COUNT_BYTES, _LEVELS_BYTES = 1, 4
_VALUES_AT = _COUNT_BYTES + _LEVELS_BYTES

_Integers: TypeAlias = np.ndarray[Any, np.dtype[np.integer[Any]]]
_Flags: TypeAlias = np.ndarray[Any, np.dtype[np.bool_]]

_LARGE, _NEGATIVE = 1, 2
"""The two bits of a value."""


class TopK(BlockCodec):
    """The largest 64 of every 4,096 numbers, at two bits each; later updates send the rest.

    SparseLoCo (Sarfi et al. 2025, https://arxiv.org/abs/2508.15706): top-k in chunks of 4,096 with
    64 kept, two bits per value and twelve bits per index. The error memory decays by 0.95 per
    round, as in Covenant-72B (https://arxiv.org/abs/2603.08163), and takes the place of outer
    momentum. A tensor's last chunk may be shorter, and keeps one number in 64, but at least one.

    The meaning of the two bits is our reading: the sign, and whether the magnitude is at least the
    mean of the kept ones. We send each half as its own mean. Each chunk has its own two levels, in
    bfloat16. It also has a count, because it may have fewer than 64 non-zero numbers. With these, a
    chunk takes 117 bytes. That is 140 times fewer than its 16,384 bytes. The paper's factor 146
    only counts values and indices.

    A record has the count, the two levels, four values per byte, and two indices in three bytes.
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
