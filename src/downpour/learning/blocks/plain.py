"""Files without a container: one example each, or rows of tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from downpour.base.errors import SpecError
from downpour.learning.blocks.formats import KINDS, Block, Row, Wanted, kind_of_file
from downpour.learning.blocks.places import BlockPlace, Buffer, refusal

_BLOCK_BYTES = 1 << 22


class Files:
    """A file is a block and an example: its `content`, decoded by its name, and its `path`."""

    def __init__(self, place: BlockPlace, wanted: Wanted) -> None:
        self._columns = wanted.chosen({"content": "", "path": "text"})
        self.blocks = [Block(key, 0, file.size_bytes, 1) for key, file in place.files.items()]
        for key in place.files:
            kind_of_file(key)

    def open(self, block: Block, content: Buffer) -> _OpenFile:
        """Return the one example."""
        return _OpenFile(block.key, bytes(content), self._columns)


@dataclass(frozen=True, slots=True)
class _OpenFile:
    key: str
    content: bytes
    columns: dict[str, str]

    @property
    def nbytes(self) -> int:
        return len(self.content)

    def row(self, number: int) -> Row:
        row = {"path": self.key, "content": self.content} if number == 0 else {}
        kinds = {**self.columns}
        if "content" in kinds:
            kinds["content"] = kinds["content"] or kind_of_file(self.key)
        return {name: KINDS[kind](row[name]) for name, kind in kinds.items()}


class Tokens:
    """Plain integers without a header; an example is a window of them and its successor.

    Example i is (x, y), int64 [length]: y is x one token later. A window never crosses two files. A
    block holds whole windows, and one token of the next.
    """

    def __init__(self, place: BlockPlace, wanted: Wanted) -> None:
        self._length = wanted.length or 0
        if self._length < 1:
            raise SpecError("length", wanted.length, "must be at least 1")
        try:
            self._dtype = np.dtype(wanted.dtype)
        except TypeError:
            accepted = "must name a type of integers, such as uint16"
            raise SpecError("dtype", wanted.dtype, accepted) from None
        size = self._dtype.itemsize
        whole = max(1, _BLOCK_BYTES // (self._length * size))
        self.blocks = []
        for key, file in place.files.items():
            if file.size_bytes % size:
                accepted = f"its {file.size_bytes} bytes do not divide into {wanted.dtype}"
                raise refusal(key, accepted)
            windows = (file.size_bytes // size - 1) // self._length
            for first in range(0, windows, whole):
                count = min(whole, windows - first)
                begin = first * self._length * size
                end = begin + (count * self._length + 1) * size
                self.blocks.append(Block(key, begin, end, count))

    def open(self, block: Block, content: Buffer) -> _OpenTokens:  # noqa: ARG002 - they are alike
        """Return the windows of a block."""
        return _OpenTokens(np.frombuffer(content, self._dtype), self._length)


@dataclass(frozen=True, slots=True)
class _OpenTokens:
    tokens: NDArray[Any]
    length: int

    @property
    def nbytes(self) -> int:
        return self.tokens.nbytes

    def row(self, number: int) -> Row:
        start = number * self.length
        window = torch.from_numpy(self.tokens[start : start + self.length + 1].astype(np.int64))
        return window[:-1], window[1:]
