"""Windows over a long row of tokens, for language models.

The row is a file that is mapped into memory, or an array. A worker reads the pages of its
windows, and nothing else. Nothing here knows what a token means.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from downpour.base.errors import SpecError
from downpour.learning.datasets.fetched import local_path


class TokenWindows:
    """Example i is a window of tokens and the same window one token later: (x, y), int64 [length].

    Args:
        tokens: the path of a file of plain integers without a header, as `array.tofile` and
            nanoGPT's `prepare.py` write it, or an array [n].
        length: tokens in a window.
        dtype: the integers' type in the file, by its name in numpy; an array has its own.
        stride: tokens from the beginning of a window to that of the next; by default `length`, so
            that an epoch sees every token once.

    Raises:
        SpecError: the file cannot be read, or does not hold a whole window and one token more.
    """

    def __init__(
        self,
        tokens: str | os.PathLike[str] | ArrayLike,
        length: int,
        dtype: str = "uint16",
        stride: int | None = None,
    ) -> None:
        if length < 1 or (stride is not None and stride < 1):
            field, value = ("length", length) if length < 1 else ("stride", stride)
            raise SpecError(field, value, "must be at least 1")
        is_path = isinstance(tokens, str | os.PathLike)
        if isinstance(tokens, str | os.PathLike):
            self._tokens: NDArray[Any] = _mapped(local_path("tokens", tokens), dtype)
        else:
            self._tokens = np.asarray(tokens)
        self._length = length
        self._stride = stride or length
        if self._tokens.ndim != 1 or self._tokens.dtype.kind not in "iu":
            raise SpecError("tokens", type(tokens).__name__, "must be a row of integers")
        if len(self._tokens) <= length:
            accepted = f"has {len(self._tokens)} tokens, but a window needs {length} and one more"
            raise SpecError("tokens", str(tokens) if is_path else "an array", accepted)

    def __len__(self) -> int:
        return (len(self._tokens) - 1 - self._length) // self._stride + 1

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        if not -len(self) <= index < len(self):
            raise IndexError(f"window {index} of {len(self)}")
        start = index % len(self) * self._stride
        window = torch.from_numpy(self._tokens[start : start + self._length + 1].astype(np.int64))
        return window[:-1], window[1:]


def _mapped(path: Path, dtype: str) -> NDArray[Any]:
    try:
        size = np.dtype(dtype).itemsize
    except TypeError:
        raise SpecError("dtype", dtype, "must name a type of integers, such as uint16") from None
    try:
        count = path.stat().st_size
        if not count or count % size:
            accepted = (
                f"its {count} bytes do not divide into values of {dtype}, which takes {size} each"
            )
            raise SpecError("tokens", str(path), accepted)
        return np.memmap(path, dtype=dtype, mode="r")
    except OSError as error:
        raise SpecError("tokens", str(path), f"cannot be read: {error.strerror}") from None
