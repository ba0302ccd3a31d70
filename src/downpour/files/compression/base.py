"""The interface of a codec: float32 numbers to fewer bytes, and back to nearly the same numbers.

Codecs write numbers in independent blocks. So a reader can begin at any multiple of `STRIDE`
numbers, and a sum over many updates can go through all of them in windows that fit the processor's
cache. The number of bytes depends only on the number of numbers. So all updates of a model have the
same layout, and we know a round's bytes before training it.

Equal numbers give equal bytes on every machine: codecs sum in a fixed order, and choose among equal
numbers by their places.
"""

from __future__ import annotations

from typing import Any, Protocol, TypeAlias

import numpy as np

from downpour.base.errors import NonFinite

Numbers: TypeAlias = np.ndarray[Any, np.dtype[np.float32]]
Bytes: TypeAlias = np.ndarray[Any, np.dtype[np.uint8]]

STRIDE = 4096
"""A multiple of every codec's block."""


class Codec(Protocol):
    """One way of writing numbers."""

    @property
    def feedback(self) -> float | None:
        """The factor for a round's error before we add it to the next round; None: drop it."""
        ...

    def size(self, count: int) -> int:
        """Return how many bytes `count` numbers take; for multiples of `STRIDE`, sizes add up."""
        ...

    def encode(self, numbers: Numbers) -> Bytes:
        """Return numbers [n] as bytes [size(n)]; zeros stay zeros.

        Raises:
            NonFinite: a number is NaN or infinite, or becomes so.
        """
        ...

    def decode(self, encoded: Bytes, out: Numbers) -> None:
        """Fill `out` [n] from bytes [size(n)]; use NaN for bytes that no codec writes."""
        ...


def check_finite(numbers: Numbers) -> None:
    """Raise NonFinite if a number is NaN or infinite."""
    if not np.isfinite(numbers).all():
        raise NonFinite("a difference holds NaN or infinity")
