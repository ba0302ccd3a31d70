"""Codecs: they write an update's difference in fewer bytes, and read it back.

To add one, write a class with the methods of `Codec`, and register it (`core/families.py`);
`tests/files/compression` tests the promises of all codecs. `files/store/updates.py` decides
the place of the bytes in a file.

Codecs write numbers in independent blocks. So a reader can begin at any multiple of `STRIDE`
numbers, and a sum over many updates can go through all of them in windows that fit the processor's
cache. The number of bytes depends only on the number of numbers. So all updates of a model have the
same layout, and we know a round's bytes before training it.

Equal numbers give equal bytes on every machine: codecs sum in a fixed order, and choose among equal
numbers by their places.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, Protocol, TypeAlias

import numpy as np

from downpour.base.errors import NonFinite
from downpour.core import families

Numbers: TypeAlias = np.ndarray[Any, np.dtype[np.float32]]
Bytes: TypeAlias = np.ndarray[Any, np.dtype[np.uint8]]

STRIDE = 4096
"""A multiple of every codec's block."""


class Codec(Protocol):
    """One way of writing numbers."""

    @property
    def feedback(self) -> float | None:
        """The factor for a round's error before we add it to the next round; None: drop it."""

    def size(self, count: int) -> int:
        """Return how many bytes `count` numbers take; for multiples of `STRIDE`, sizes add up."""

    def encode(self, numbers: Numbers) -> Bytes:
        """Return numbers [n] as bytes [size(n)]; zeros stay zeros.

        Raises:
            NonFinite: a number is NaN or infinite, or becomes so.
        """

    def decode(self, encoded: Bytes, out: Numbers) -> None:
        """Fill `out` [n] from bytes [size(n)]; use NaN for bytes that no codec writes."""


def check_finite(numbers: Numbers) -> None:
    """Raise NonFinite if a number is NaN or infinite."""
    if not np.isfinite(numbers).all():
        raise NonFinite("a difference holds NaN or infinity")


_BLOCKS_AT_ONCE, _NUMBERS_AT_ONCE = 64, 2**16
"""How many we code together: enough to be fast, few enough to stay in the cache."""


class BlockCodec(ABC):
    """A codec of blocks; a subclass says how [m, n] numbers become [m, _record_bytes(n)] bytes.

    Every block becomes one record; the last one of a tensor may be shorter.
    """

    block: ClassVar[int]

    @abstractmethod
    def _record_bytes(self, count: int) -> int:
        """Return the size of the record of a block of 1 to `block` numbers."""

    @abstractmethod
    def _encode_blocks(self, numbers: Numbers) -> Bytes:
        """Return records for finite blocks [m, n]."""

    @abstractmethod
    def _decode_blocks(self, records: Bytes, out: Numbers) -> None:
        """Fill blocks [m, n] from their records."""

    def size(self, count: int) -> int:
        """Return how many bytes `count` numbers take."""
        whole, rest = divmod(count, self.block)
        return whole * self._record_bytes(self.block) + (self._record_bytes(rest) if rest else 0)

    def encode(self, numbers: Numbers) -> Bytes:
        """Return finite numbers [n] as bytes."""
        check_finite(numbers)
        encoded = np.empty(self.size(len(numbers)), np.uint8)
        for blocks, records in self._parts(numbers, encoded):
            records[:] = self._encode_blocks(blocks)
        return encoded

    def decode(self, encoded: Bytes, out: Numbers) -> None:
        """Fill `out` [n] from its bytes."""
        # Damaged data may decode to any number; the sums check for that.
        with np.errstate(all="ignore"):
            for blocks, records in self._parts(out, encoded):
                self._decode_blocks(records, blocks)

    def _parts(self, numbers: Numbers, encoded: Bytes) -> list[tuple[Numbers, Bytes]]:
        """Return views of a few blocks and their records at a time, which together cover all."""
        each = self._record_bytes(self.block)
        step = max(_BLOCKS_AT_ONCE, _NUMBERS_AT_ONCE // self.block)
        whole = len(numbers) // self.block
        rest = len(numbers) % self.block
        blocks = numbers[: whole * self.block].reshape(whole, self.block)
        records = encoded[: whole * each].reshape(whole, each)
        parts = [(blocks[at : at + step], records[at : at + step]) for at in range(0, whole, step)]
        if rest:
            last = encoded[whole * each :]
            parts.append((numbers[-rest:].reshape(1, rest), last.reshape(1, len(last))))
        return parts


CODECS: Mapping[str, Codec] = families.CODECS
