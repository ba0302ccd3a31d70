"""The common code of codecs that write numbers in blocks: whole blocks at once, then the rest.

Every block becomes one record; the last one of a tensor may be shorter.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

import numpy as np

from downpour.files.compression.base import Bytes, Numbers, check_finite

_BLOCKS_AT_ONCE, _NUMBERS_AT_ONCE = 64, 2**16
"""How many we code together: enough to be fast, few enough to stay in the cache."""


class BlockCodec(ABC):
    """A codec of blocks; a subclass says how [m, n] numbers become [m, _record_bytes(n)] bytes."""

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
