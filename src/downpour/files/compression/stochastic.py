"""Few levels a number, rounded up or down at random, so that nothing is lost on average.

A number y between two levels becomes the upper one with the probability of its distance from the
lower one: E[code] = y. What is lost is noise, which later numbers make up for, as they do for that
of a batch's gradient. So nothing of it is kept. QSGD (Alistarh et al. 2017,
https://arxiv.org/abs/1610.02132, section 3.1) does so with levels between zero and a norm, TernGrad
(Wen et al. 2017, https://arxiv.org/abs/1705.07878, section 3) with -1, 0 and 1 times the largest
magnitude. Here the largest magnitude is that of a block of 128, for a tensor's outlier would make
all of its other numbers noise.

What is drawn follows from the numbers of the block alone: equal numbers have equal bytes on every
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

_Words: TypeAlias = np.ndarray[Any, np.dtype[np.uint32]]


@dataclass(frozen=True)
class Stochastic(BlockCodec):
    """A record is the scale (bfloat16), then the codes, packed, the first lowest.

    Args:
        largest: Codes are -largest to largest.
        base: A word is a number with this base; each of its digits is a code.
        together: How many codes make a word.
        word_bits: Its size, 8 or 12; words are packed without gaps.
    """

    largest: int
    base: int
    together: int
    word_bits: int
    block: ClassVar[int] = 128
    feedback: ClassVar[None] = None

    def _record_bytes(self, count: int) -> int:
        return _SCALE_BYTES - (-self._words(count) * self.word_bits // 8)

    def _words(self, count: int) -> int:
        return -(-count // self.together)

    def _encode_blocks(self, numbers: Numbers) -> Bytes:
        rows, count = numbers.shape
        scale = self._scale(np.abs(numbers).max(axis=1, keepdims=True))
        numbers_scaled = numbers / np.where(scale > 0, scale, np.float32(np.inf))
        codes = np.floor(numbers_scaled + _drawn(numbers))
        digits = np.full((rows, self._words(count) * self.together), self.largest, np.uint32)
        digits[:, :count] = np.clip(codes, -self.largest, self.largest) + self.largest
        words = (digits.reshape(rows, -1, self.together) * self._powers).sum(2, dtype=np.uint32)
        halves = (scale.view(np.uint32) >> np.uint32(16)).astype("<u2")
        return np.concatenate([halves.view(np.uint8), self._packed(words)], axis=1)

    def _decode_blocks(self, records: Bytes, out: Numbers) -> None:
        scale = from_bfloat16(records[:, :_SCALE_BYTES].copy().view("<u2"))
        words = self._unpacked(records[:, _SCALE_BYTES:], self._words(out.shape[1]))
        numbers = self._table[words].reshape(len(records), -1)
        np.multiply(numbers[:, : out.shape[1]], scale, out=out)

    def _scale(self, largest: Numbers) -> Numbers:
        """Return scales that bfloat16 has, with which no number is beyond the last code.

        It is zero where bfloat16 has few digits left: then the whole block becomes zeros.
        """
        finite = np.minimum(largest / np.float32(self.largest), self._scale_max)
        up = (finite.view(np.uint32) + np.uint32(0xFFFF)) & np.uint32(0xFFFF0000)
        scale: Numbers = np.minimum(up.view(np.float32), self._scale_max)
        scale[scale < np.finfo(np.float32).tiny] = 0
        return scale

    @cached_property
    def _scale_max(self) -> np.float32:
        """The largest scale of which the last code is finite."""
        most = np.float32(np.finfo(np.float32).max / np.float32(self.largest))
        return (most.view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32)

    @property
    def _powers(self) -> _Words:
        return (self.base ** np.arange(self.together)).astype(np.uint32)

    @cached_property
    def _table(self) -> Numbers:
        """The codes [2 ** word_bits, together] of each word, NaN for words that are not written."""
        words = np.arange(2**self.word_bits, dtype=np.int64)[:, None]
        digits = words // self._powers.astype(np.int64)
        digits[:, :-1] %= self.base
        table = (digits - self.largest).astype(np.float32)
        table[(digits > 2 * self.largest).any(axis=1)] = np.nan
        return table

    def _packed(self, words: _Words) -> Bytes:
        if self.word_bits == 8:
            return words.astype(np.uint8)
        pairs = np.pad(words, ((0, 0), (0, words.shape[1] % 2))).reshape(len(words), -1, 2)
        joined = pairs[:, :, 0] | (pairs[:, :, 1] << np.uint32(self.word_bits))
        packed = joined.astype("<u4").view(np.uint8).reshape(len(words), -1, 4)[:, :, :3]
        return packed.reshape(len(words), -1)[:, : -(-words.shape[1] * self.word_bits // 8)]

    def _unpacked(self, packed: Bytes, count: int) -> _Words:
        if self.word_bits == 8:
            return packed.astype(np.uint32)
        threes = np.pad(packed, ((0, 0), (0, -packed.shape[1] % 3))).reshape(len(packed), -1, 3)
        joined = np.pad(threes, ((0, 0), (0, 0), (0, 1))).view("<u4")[:, :, 0]
        low = np.uint32(2**self.word_bits - 1)
        pairs = np.stack([joined & low, joined >> np.uint32(self.word_bits)], axis=2)
        return pairs.reshape(len(packed), -1)[:, :count]


def _drawn(numbers: Numbers) -> Numbers:
    """Return numbers [m, n] that are 0 or more and below 1, made of those of each row."""
    bits = np.ascontiguousarray(numbers).view(np.uint32)
    mixed = bits.sum(axis=1, keepdims=True, dtype=np.uint32)
    mixed = mixed + np.arange(numbers.shape[1], dtype=np.uint32) * np.uint32(0x9E3779B9)
    # The finalizer of MurmurHash3, which spreads every bit over all others.
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
        mixed ^= mixed >> np.uint32(shift)
        mixed *= np.uint32(factor)
    mixed ^= mixed >> np.uint32(16)
    drawn: Numbers = (mixed >> np.uint32(8)).astype(np.float32) * np.float32(2**-24)
    return drawn


INT3 = Stochastic(largest=3, base=8, together=4, word_bits=12)
TERNGRAD = Stochastic(largest=1, base=3, together=5, word_bits=8)
