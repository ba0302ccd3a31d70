"""Files without a container: one example each, or rows of tokens."""

from __future__ import annotations

from contextlib import suppress
from functools import cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from downpour.base.errors import SpecError
from downpour.files.store.layout import Buffer
from downpour.learning.blocks.formats import KINDS, Block, OpenBlock, Wanted, chosen, kind_of_file
from downpour.learning.blocks.places import BlockPlace, refusal

_BLOCK_BYTES = 1 << 22


class Files:
    """A file is a block and an example: its `content`, decoded by its name, and its `path`."""

    def __init__(self, place: BlockPlace, wanted: Wanted) -> None:
        self.blocks = [Block(key, 0, file.size_bytes, 1) for key, file in place.files.items()]
        kinds = cache(lambda kind: chosen(wanted, {"content": kind, "path": "text"}))
        self._kinds = {key: kinds(kind_of_file(key)) for key in place.files}

    def open(self, block: Block, content: Buffer) -> OpenBlock:
        """Return the one example."""
        row, kinds = {"path": block.key, "content": bytes(content)}, self._kinds[block.key]
        return OpenBlock(
            len(content), lambda _: {name: KINDS[kinds[name]](row[name]) for name in kinds}
        )


class Tokens:
    """Plain integers without a header; an example is a window of them and its successor.

    Example i is (x, y), int64 [length]: y is x one token later. A window never crosses two files. A
    block holds whole windows, and one token of the next.
    """

    def __init__(self, place: BlockPlace, length: int, dtype: str) -> None:
        if length < 1:
            raise SpecError("length", length, "must be at least 1")
        self._length, self._dtype = length, token_type(dtype)
        size = self._dtype.itemsize
        whole = max(1, _BLOCK_BYTES // (length * size))
        self.blocks = []
        for key, file in place.files.items():
            if file.size_bytes % size:
                accepted = f"its {file.size_bytes} bytes do not divide into {dtype}"
                raise refusal(key, accepted)
            windows = (file.size_bytes // size - 1) // length
            for first in range(0, windows, whole):
                count = min(whole, windows - first)
                begin = first * length * size
                end = begin + (count * length + 1) * size
                self.blocks.append(Block(key, begin, end, count))

    def open(self, block: Block, content: Buffer) -> OpenBlock:  # noqa: ARG002 - they are alike
        """Return the windows of a block."""
        tokens = np.frombuffer(content, self._dtype)
        return OpenBlock(
            tokens.nbytes, lambda number: window(tokens, number * self._length, self._length)
        )


def token_type(name: str) -> np.dtype[Any]:
    """Return the type of the integers in a file of tokens, by its name in numpy."""
    with suppress(TypeError):
        if (found := np.dtype(name)).kind in "iu":
            return found
    raise SpecError("dtype", name, "must name a type of integers, such as uint16")


def window(tokens: NDArray[Any], start: int, length: int) -> tuple[Tensor, Tensor]:
    """Return a window of tokens [n] and the same window one token later, both int64 [length]."""
    found = torch.from_numpy(tokens[start : start + length + 1].astype(np.int64))
    return found[:-1], found[1:]
