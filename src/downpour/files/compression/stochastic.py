"""Few levels per number, rounded up or down at random, so that the average loses nothing.

A number y between two levels becomes the upper one with a probability equal to its distance from
the lower one: E[code] = y. The loss is noise, which later numbers make up for, as they do for a
batch's gradient noise. So we keep no error. QSGD (Alistarh et al. 2017,
https://arxiv.org/abs/1610.02132, section 3.1) does this with levels between zero and a norm,
TernGrad (Wen et al. 2017, https://arxiv.org/abs/1705.07878, section 3) with three levels: minus,
zero or plus the largest magnitude. Here the largest magnitude is that of a block of 128, because a
tensor's outlier would turn all its other numbers into noise.

The random numbers depend only on the numbers of the block: equal numbers have equal bytes on every
machine, and different shards draw differently.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, TypeAlias

import numpy as np

from downpour.files.compression.base import Bytes, Numbers
from downpour.files.compression.blocks import BlockCodec
from downpour.files.compression.floats import from_bfloat16

_SCALE_BYTES = 2
_BLOCK = 128
_PLACES = np.arange(_BLOCK, dtype=np.uint32) * np.uint32(0x9E3779B9)
"""A different number for each place of a block: multiples of 2 ** 32 over the golden ratio."""

_Words: TypeAlias = np.ndarray[Any, np.dtype[np.uint16]]


@dataclass(frozen=True)
class Stochastic(BlockCodec):
    """A record is the scale (bfloat16), then the packed codes, the first one lowest.

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
        return _SCALE_BYTES - (-self._words(count) * self.word_bits // 8)

    def _words(self, count: int) -> int:
        return -(-count // self.together)

    def _encode_blocks(self, numbers: Numbers) -> Bytes:
        rows, count = numbers.shape
        scale = self._scale(np.abs(numbers).max(axis=1, keepdims=True))
        codes = numbers / np.where(scale > 0, scale, np.float32(np.inf))
        codes += _drawn(numbers)
        np.floor(codes, out=codes)
        np.clip(codes, -self.largest, self.largest, out=codes)
        digits = np.full((rows, self._words(count) * self.together), self.largest, np.uint16)
        digits[:, :count] = codes + np.float32(self.largest)
        halves = (scale.view(np.uint32) >> np.uint32(16)).astype("<u2")
        return np.concatenate([halves.view(np.uint8), self._packed(self._joined(digits))], axis=1)

    def _decode_blocks(self, records: Bytes, out: Numbers) -> None:
        scale = from_bfloat16(records[:, :_SCALE_BYTES].copy().view("<u2"))
        words = self._unpacked(records[:, _SCALE_BYTES:], self._words(out.shape[1]))
        numbers = self._table.take(words, axis=0).reshape(len(records), -1)
        np.multiply(numbers[:, : out.shape[1]], scale, out=out)

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

    def _joined(self, digits: _Words) -> _Words:
        """Return the words [m, n / together] of digits [m, n]."""
        words = digits[:, :: self.together].copy()
        for place in range(1, self.together):
            words += digits[:, place :: self.together] * np.uint16(self.base**place)
        return words

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
