"""The interface of a codec: float32 numbers to fewer bytes, and back to nearly the same numbers.

Numbers are coded in blocks that know nothing of each other. So a reader can begin at any multiple
of `STRIDE` numbers, and a sum over many updates can go through all of them in windows that fit the
processor's cache. The number of bytes follows from the number of numbers alone. So all updates of a
model have one layout, and we know a round's bytes before training it.

Equal numbers give equal bytes on every machine: sums are taken in a fixed order, and which of
several equal numbers is kept follows from their places.
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
        """The factor for a round's error before we add it to the next one's; None: drop it."""
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
        """Fill `out` [n] from bytes [size(n)]; with NaN where they are not what a codec writes."""
        ...


def check_finite(numbers: Numbers) -> None:
    """Raise NonFinite if a number is NaN or infinite."""
    if not np.isfinite(numbers).all():
        raise NonFinite("a difference holds NaN or infinity")
