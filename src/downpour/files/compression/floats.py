"""Numbers as floats of 32 or 16 bits, without error feedback.

bfloat16 has float32's range and 8 significant bits, float16 11 bits and less range (IEEE 754;
Kalamkar et al. 2019, https://arxiv.org/abs/1905.12322). numpy has no bfloat16, so we make its bits
here: float32's upper half, rounded to nearest, ties to even.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from downpour.base.errors import NonFinite
from downpour.files.compression.base import Bytes, Numbers, check_finite

_HALF = np.uint32(0x7FFF)
BFLOAT16_MAX = np.uint32(0x7F7F0000).view(np.float32)
"""The largest number that is finite."""


@dataclass(frozen=True, slots=True)
class Float:
    """Floats of a type that numpy has."""

    dtype: str
    feedback: ClassVar[None] = None

    def size(self, count: int) -> int:
        """Return how many bytes `count` numbers take."""
        return count * np.dtype(self.dtype).itemsize

    def encode(self, numbers: Numbers) -> Bytes:
        """Return finite numbers [n] as bytes."""
        check_finite(numbers)
        with np.errstate(over="ignore"):
            encoded = numbers.astype(self.dtype)
        if not np.isfinite(encoded).all():
            raise NonFinite("a difference is too large for float16")
        return encoded.view(np.uint8)

    def decode(self, encoded: Bytes, out: Numbers) -> None:
        """Fill `out` [n] from its bytes."""
        out[:] = encoded.view(self.dtype)


class BFloat16:
    """The upper half of float32."""

    feedback = None

    def size(self, count: int) -> int:
        """Return how many bytes `count` numbers take."""
        return 2 * count

    def encode(self, numbers: Numbers) -> Bytes:
        """Return finite numbers [n] as bytes."""
        check_finite(numbers)
        encoded = to_bfloat16(numbers)
        if not np.isfinite(from_bfloat16(encoded)).all():
            raise NonFinite("a difference is too large for bfloat16")
        return encoded.view(np.uint8)

    def decode(self, encoded: Bytes, out: Numbers) -> None:
        """Fill `out` [n] from its bytes."""
        # We write straight into place: the lower halves are zeros.
        bits = out.view(np.uint32)
        np.left_shift(encoded.view("<u2"), np.uint32(16), out=bits, dtype=np.uint32)


FLOAT32, BFLOAT16, FLOAT16 = Float("<f4"), BFloat16(), Float("<f2")


def to_bfloat16(numbers: Numbers) -> np.ndarray[tuple[int, ...], np.dtype[np.uint16]]:
    """Return the bits of finite numbers, rounded to nearest, ties to even."""
    bits = np.ascontiguousarray(numbers).view(np.uint32)
    odd = (bits >> np.uint32(16)) & np.uint32(1)
    return ((bits + (_HALF + odd)) >> np.uint32(16)).astype("<u2")


def from_bfloat16(bits: np.ndarray[tuple[int, ...], np.dtype[np.uint16]]) -> Numbers:
    """Return the numbers of these bits."""
    return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)
