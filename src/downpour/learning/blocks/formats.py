"""Formats: each knows the blocks of its files, and how to read examples from a block."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch

from downpour.base.errors import SpecError
from downpour.files.store.layout import Buffer
from downpour.learning.blocks.places import refusal

Row = Any
"""An example: its columns by name; a window of tokens is a pair."""


@dataclass(frozen=True, slots=True)
class Block:
    """Examples that lie together: the bytes [begin, end) of a file, which hold `count` of them.

    Open, it takes `opened_bytes`; 0: as many as in its file.
    """

    key: str
    begin: int
    end: int
    count: int
    opened_bytes: int = 0

    @property
    def size_bytes(self) -> int:
        """How long it is in its file."""
        return self.end - self.begin


class OpenBlock(NamedTuple):
    """A block in memory: how much it takes, and an example by its number in it."""

    nbytes: int
    row: Callable[[int], Row]


class BlockFormat(Protocol):
    """The blocks of a place's files, in the order of their examples."""

    blocks: list[Block]

    def open(self, block: Block, content: Buffer) -> OpenBlock:
        """Return a block whose bytes were read."""


PICKLED = "is pickled, and could run any code: write it in another form"
IMAGES = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".ppm", ".tif", ".tiff")
_PICKLED = (".pkl", ".pickle", ".pyd", ".pth", ".pt")


def image(content: Buffer) -> torch.Tensor:
    """Decode an image to uint8 [c, h, w]: one channel if it is gray, and otherwise three."""
    from PIL import Image

    with Image.open(io.BytesIO(content)) as opened:
        return pixels(opened)


def pixels(opened: Any) -> torch.Tensor:
    """Return the pixels of Pillow's image; see `image`."""
    if opened.mode[0] in "IF":  # Pillow would cut their brightness off at 255
        raise ValueError("has more than 8 bits per channel")
    found = np.array(opened if opened.mode == "L" else opened.convert("RGB"), np.uint8)
    return torch.from_numpy(found[np.newaxis] if found.ndim == 2 else found.transpose(2, 0, 1))


def _bytes_of(value: Any) -> bytes:
    """Return a value's bytes: Hugging Face keeps a file's bytes and path in a struct."""
    return bytes(value["bytes"] if isinstance(value, Mapping) else value)


def _tensor(value: Any) -> torch.Tensor:
    if isinstance(value, bytes | memoryview):
        value = np.load(io.BytesIO(value), allow_pickle=False)
    return torch.as_tensor(value)


KINDS: Mapping[str, Callable[[Any], Any]] = {
    "": lambda value: value,
    "image": lambda value: image(_bytes_of(value)),
    "bytes": _bytes_of,
    "text": lambda value: value if isinstance(value, str) else _bytes_of(value).decode(),
    "json": lambda value: json.loads(value if isinstance(value, str) else _bytes_of(value)),
    "integer": int,
    "number": float,
    "tensor": _tensor,
}
"""How a column's value becomes what an example holds; "" leaves it as it is."""


def suffix_of(name: str) -> str:
    """Return the end of a file's name in small letters; `Path` takes ten times as long."""
    return os.path.splitext(name)[1].lower()  # noqa: PTH122


def kind_of_file(name: str) -> str:
    """Return how to read a file by the end of its name; pickled ones are refused."""
    suffix = suffix_of(name)
    if suffix in _PICKLED:
        raise refusal(name, PICKLED)
    if suffix in IMAGES:
        return "image"
    by_suffix = {".txt": "text", ".json": "json", ".npy": "tensor", ".cls": "integer"}
    return by_suffix.get(suffix, "bytes")


Wanted = Mapping[str, str] | None
"""The columns that the user asked for, with their kinds: "" leaves one to the format. None: all."""


def chosen(wanted: Wanted, kinds: Mapping[str, str]) -> dict[str, str]:
    """Return the wanted ones of a format's columns, with the kind of each."""
    if wanted is None:
        return dict(kinds)
    for name in wanted:
        if name not in kinds:
            raise SpecError("columns", name, f"there are {', '.join(sorted(kinds))}")
    return {name: kind or kinds[name] for name, kind in wanted.items()}
