"""Parquet, as the Hugging Face hub keeps it: a row group is a block.

A row group's columns lie one after the other. A file's footer tells where. We read each footer
once, and hand row groups to `pyarrow` as if the file began and ended with them.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from downpour.base.errors import FileCorrupt, require
from downpour.files.store.layout import Buffer
from downpour.learning.blocks.formats import KINDS, Block, OpenBlock, Wanted, chosen
from downpour.learning.blocks.places import BlockPlace, RangeFile, refusal

_FOOTER_BYTES = 1 << 16
_READERS = 16


class Parquet:
    """The row groups of all `.parquet` files of a place, which have one schema."""

    def __init__(self, place: BlockPlace, wanted: Wanted) -> None:
        require("Blocks of Parquet", "blocks")
        keys = [key for key in place.files if key.lower().endswith(".parquet")]
        with ThreadPoolExecutor(_READERS) as readers:
            footers = list(readers.map(lambda key: _footer(place, key), keys))
        self._footers = dict(zip(keys, footers, strict=True))
        with _reading(keys[0]):
            schema = footers[0].schema.to_arrow_schema()
            self._columns = chosen(wanted, _kinds(schema))
        self.blocks: list[Block] = []
        self._groups: dict[Block, int] = {}
        for key, footer in self._footers.items():
            with _reading(key):
                if not footer.schema.to_arrow_schema().equals(schema):
                    raise refusal(key, f"its columns differ from those of {keys[0]}")
                for number in range(footer.num_row_groups):
                    block = self._block(key, footer.row_group(number))
                    self._groups[block] = number
                    self.blocks.append(block)

    def _block(self, key: str, group: Any) -> Block:
        """Return the bytes from the first column that is read to the last one."""
        columns = [group.column(number) for number in range(group.num_columns)]
        wanted = tuple(f"{name}." for name in self._columns)
        read = [one for one in columns if f"{one.path_in_schema}.".startswith(wanted)]
        # If there is a dictionary, it precedes the data.
        begins = [one.dictionary_page_offset or one.data_page_offset for one in read]
        ends = [begin + one.total_compressed_size for begin, one in zip(begins, read, strict=True)]
        opened_bytes = sum(one.total_uncompressed_size for one in read)
        begin, end = min(begins, default=0), max(ends, default=0)
        return Block(key, begin, end, group.num_rows, opened_bytes)

    def open(self, block: Block, content: Buffer) -> OpenBlock:
        """Decode a row group to columns."""
        from pyarrow import ArrowException, PythonFile
        from pyarrow.parquet import ParquetFile

        def read(begin: int, end: int) -> Buffer:
            return content[begin - block.begin : end - block.begin]

        file = PythonFile(RangeFile(read, block.end), "r")
        try:
            footer = self._footers[block.key]
            opened = ParquetFile(file, metadata=footer, page_checksum_verification=True)
            table = opened.read_row_group(
                self._groups[block], columns=list(self._columns), use_threads=False
            ).combine_chunks()
        except MemoryError:  # of which pyarrow's is an ArrowException, too
            raise
        except (ArrowException, OSError) as error:
            reason = " ".join(str(error).split())
            raise FileCorrupt(block.key, f"row group {self._groups[block]}: {reason}") from None
        return OpenBlock(
            table.nbytes,
            lambda number: {
                name: _read(table.column(name)[number], kind)
                for name, kind in self._columns.items()
            },
        )


def _footer(place: BlockPlace, key: str) -> Any:
    from pyarrow.parquet import read_metadata

    size = place.files[key].size_bytes
    begin = max(0, size - _FOOTER_BYTES)
    tail = place.read(key, begin, size)
    if len(tail) >= 12 and bytes(tail[-4:]) == b"PAR1":
        needed = int.from_bytes(tail[-8:-4], "little") + 12
        if needed > len(tail) and needed <= size:
            tail = place.read(key, size - needed, size)
    with _reading(key):
        return read_metadata(io.BytesIO(b"PAR1" + bytes(tail)))


@contextmanager
def _reading(key: str) -> Iterator[None]:
    """Name the file whose footer is damaged; names and notes in it may be no text or no JSON."""
    from pyarrow import ArrowException

    try:
        yield
    except (ArrowException, AttributeError, OSError, ValueError) as error:
        raise refusal(key, f"is no Parquet file: {' '.join(str(error).split())}") from None


def _kinds(schema: Any) -> dict[str, str]:
    """Return how to read each column, from its type and from Hugging Face's note on it."""
    said = json.loads((schema.metadata or {}).get(b"huggingface", b"{}"))
    features = said.get("info", {}).get("features", {})
    kinds = {}
    for column in schema:
        feature = features.get(column.name)
        is_image = isinstance(feature, dict) and feature.get("_type") == "Image"
        kinds[column.name] = "image" if is_image else "tensor" if _is_array(column.type) else ""
    return kinds


def _is_list(kind: Any) -> bool:
    from pyarrow import types

    return bool(types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind))


def _is_array(kind: Any) -> bool:
    """Whether it is lists of numbers, however deep."""
    from pyarrow import types

    inner = kind
    while _is_list(inner):
        inner = inner.value_type
    is_number = types.is_integer(inner) or types.is_floating(inner) or types.is_boolean(inner)
    return inner is not kind and bool(is_number)


def _read(value: Any, kind: str) -> Any:
    if kind == "tensor" and _is_list(value.type) and value.is_valid:
        return torch.tensor(_array(value))
    return KINDS[kind](value.as_py())


def _array(value: Any) -> Any:
    """Return a list of numbers as an array, without a Python object for each."""
    if _is_list(value.type.value_type):
        arrays = [_array(inner) for inner in value.values]
        return np.stack(arrays) if arrays else np.empty(0)
    if value.values.null_count:
        raise ValueError("a number is null")
    return value.values.to_numpy(zero_copy_only=False)
