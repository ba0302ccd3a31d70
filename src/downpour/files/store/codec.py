"""Parameters to bytes and back, in the safetensors layout.

This module has its own reader and writer. The `safetensors` library joins all tensors into one new
buffer when it writes, and copies each of them when it reads from memory. Both are full copies of a
model, which may have gigabytes. Here `encode` returns the tensors' own memory and `decode` returns
views. The library and this module read each other's files. Equal tensors and metadata always give
equal bytes. `header` checks a file's claims.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from downpour.files.store.base import Buffer
from downpour.files.store.header import (
    DTYPES,
    Array,
    Layout,
    plan_layout,
    read_header,
    write_header,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameters:
    """A parameter file's content: tensors by name, and its metadata; `layout` has their places."""

    tensors: dict[str, Array]
    metadata: dict[str, str]
    layout: Layout


@dataclass(frozen=True, slots=True, kw_only=True)
class ParameterFile(Parameters):
    """The content of a parameter file: read-only tensors by name, in the order of their bytes.

    `layout` gives their places in `data`, which are their bytes; `head` are the bytes before.
    """

    head: memoryview
    data: Array


def encode(
    tensors: Mapping[str, Array], metadata: Mapping[str, str], layout: Layout | None = None
) -> list[Buffer]:
    """Return the chunks of a parameter file: a header, then each tensor's own memory.

    A given `layout` has these tensors, perhaps in another order.

    We copy only tensors that are not contiguous or not little-endian. The caller must not change
    the tensors until the chunks are written.

    Raises:
        SpecError: a tensor's dtype cannot be stored (bfloat16, which numpy lacks, or complex).
        ValueError: a tensor has a reserved name, or the header is too large.
    """
    if "__metadata__" in tensors:
        raise ValueError("a tensor must not be called __metadata__")
    layout = layout or plan_layout(tensors)
    chunks: list[Buffer] = [write_header(layout, metadata)]
    for entry in layout.entries:
        array = np.ascontiguousarray(tensors[entry.name], dtype=entry.dtype)
        chunks.append(array.reshape(-1).view(np.uint8).data)
    return chunks


def decode(
    buffer: Buffer, name: str, dtypes: Mapping[str, np.dtype[Any]] = DTYPES
) -> ParameterFile:
    """Return a parameter file's content; the tensors are read-only views of `buffer`.

    Args:
        buffer: The whole file.
        name: The file's name, for errors.
        dtypes: The types that its tensors may have.

    Raises:
        FileCorrupt: the bytes are not a parameter file.
    """
    flat = memoryview(buffer).cast("B").toreadonly()
    header = read_header(flat, name, dtypes)
    data = np.frombuffer(flat, np.uint8)[header.data_start :]
    return ParameterFile(
        tensors=header.layout.views(data),
        metadata=header.metadata,
        layout=header.layout,
        head=flat[: header.data_start],
        data=data,
    )
