"""The formats that say themselves where their blocks lie: Parquet and MDS.

Parquet, as the Hugging Face hub keeps it: a row group is a block. Its columns lie one after the
other, and a file's footer tells where. We read each footer once, and hand row groups to `pyarrow`
as if the file began and ended with them.

MDS, the format of mosaicml-streaming: a shard is a block. `index.json` lists the shards with their
columns. A shard is the number of its examples, the place of each, its columns once more, and then
the examples. An example is the sizes of those columns that have no fixed size, and then the values.
All integers are little-endian uint32. A compressed shard is the same behind a codec.
"""

import io
import json
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import PurePosixPath
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from downpour.base.errors import FileCorrupt, require
from downpour.files.store.layout import Buffer
from downpour.learning.blame import message_of
from downpour.learning.blocks import formats
from downpour.learning.blocks.formats import KINDS, PICKLED, Block, OpenBlock, Row, Wanted, chosen
from downpour.learning.blocks.places import BlockPlace, RangeFile, refusal

_FOOTER_BYTES = 1 << 16
_OPENERS = 16


class Parquet:
    """The row groups of all `.parquet` files of a place, which have one schema."""

    def __init__(self, place: BlockPlace, wanted: Wanted) -> None:
        require("Blocks of Parquet", "blocks")
        keys = [key for key in place.files if key.lower().endswith(".parquet")]
        with ThreadPoolExecutor(_OPENERS) as readers:
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
            reason = f"row group {self._groups[block]}: {message_of(error)}"
            raise FileCorrupt(block.key, reason) from None
        return OpenBlock(
            table.nbytes,
            lambda number: {
                name: _cell(table.column(name)[number], kind)
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
        raise refusal(key, f"is no Parquet file: {message_of(error)}") from None


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


def _cell(value: Any, kind: str) -> Any:
    if kind == "tensor" and _is_list(value.type) and value.is_valid:
        return torch.tensor(_of_lists(value))
    return KINDS[kind](value.as_py())


def _of_lists(value: Any) -> Any:
    """Return a list of numbers as an array, without a Python object for each."""
    if _is_list(value.type.value_type):
        arrays = [_of_lists(inner) for inner in value.values]
        return np.stack(arrays) if arrays else np.empty(0)
    if value.values.null_count:
        raise ValueError("a number is null")
    return value.values.to_numpy(zero_copy_only=False)


_CODECS = {"gz": "gzip", "br": "brotli", "zstd": "zstd", "bz2": "bz2"}
_VERSION = 2
_WORD = 4
_COLUMNS = "column_names", "column_encodings", "column_sizes"
_OF_BYTES = ("bytes", "image", "text", "json")
"""The kinds that are made of a value as it is in the file."""

_Columns = list[tuple[str, int, Callable[[bytes], Any] | None]]
"""Their names, their sizes in bytes or 0 if the examples tell, and how to read them."""


class Mds:
    """The shards of all `index.json` of a place."""

    def __init__(self, place: BlockPlace, wanted: Wanted) -> None:
        self.blocks: list[Block] = []
        self._shards: dict[str, Mapping[str, Any]] = {}
        self._declared: list[tuple[str, str, int | None]] = []
        for key in place.files:
            if PurePosixPath(key).name == "index.json":
                self._read_index(place, key)
        self._encodings = {name: encoding for name, encoding, _ in self._declared}
        self._columns = chosen(wanted, dict.fromkeys(self._encodings, ""))
        for name in self._columns:
            if self._encodings[name].partition(":")[0] not in _DECODERS:
                accepted = f"column {name} is encoded as {self._encodings[name]}"
                is_pickled = self._encodings[name] == "pkl"
                accepted += f", which {PICKLED}" if is_pickled else ""
                raise refusal(self.blocks[0].key, accepted)

    def _read_index(self, place: BlockPlace, key: str) -> None:
        folder = PurePosixPath(key).parent
        try:
            index = json.loads(bytes(place.read(key, 0, place.files[key].size_bytes)))
            for shard in index["shards"]:
                if shard["format"] != "mds" or shard["version"] != _VERSION:
                    raise refusal(key, f"is of format {shard['format']} {shard['version']}")
                about = shard["zip_data"] or shard["raw_data"]
                name = (folder / about["basename"]).as_posix()
                size = int(about["bytes"])
                opened_bytes = int(shard["raw_data"]["bytes"])
                block = Block(name, 0, size, int(shard["samples"]), opened_bytes)
                if name not in place.files:
                    raise refusal(key, f"names {name}, which is missing")
                if place.files[name].size_bytes != block.end:
                    size = place.files[name].size_bytes
                    raise refusal(name, f"has {size} bytes, but {key} says {block.end}")
                if name not in self._shards:  # a merged index names those of others again
                    self.blocks.append(block)
                if not 0 <= block.count <= opened_bytes // _WORD:
                    raise refusal(name, f"does not hold {block.count} examples, as {key} says")
                columns = list(zip(*(shard[part] for part in _COLUMNS), strict=True))
                self._declared = self._declared or columns
                if columns != self._declared:
                    raise refusal(name, f"its columns differ from those of {self.blocks[0].key}")
                self._shards[name] = shard
        except (ValueError, KeyError, TypeError) as error:
            raise refusal(key, f"is no index of MDS: {type(error).__name__} {error}") from None
        if not self.blocks:
            raise refusal(key, "names no shards")

    def open(self, block: Block, content: Buffer) -> OpenBlock:
        """Return a shard; its places must be those of the index."""
        shard = self._shards[block.key]
        if shard["zip_data"]:
            content = _decompressed(block.key, shard, content)
        whole_bytes = len(content) // _WORD * _WORD
        offsets = np.frombuffer(content[: min(_WORD * (block.count + 2), whole_bytes)], "<u4")
        ends = offsets[1:].astype(np.int64)
        is_sound = (
            len(offsets) == block.count + 2
            and offsets[0] == block.count
            and (np.diff(ends) >= 0).all()
            and ends[0] >= _WORD * len(offsets)
            and ends[-1] == len(content)
        )
        if not is_sound:
            raise FileCorrupt(block.key, f"does not hold {block.count} examples, as its index says")
        columns = [(name, size or 0, self._reading(name)) for name, _, size in self._declared]
        view = memoryview(content)
        return OpenBlock(len(view), lambda number: _row(view, ends[number : number + 2], columns))

    def _reading(self, name: str) -> Callable[[bytes], Any] | None:
        """Return how to read a column's bytes; None if it is not wanted."""
        if name not in self._columns:
            return None
        kind, _, form = self._encodings[name].partition(":")
        wanted = self._columns[name]
        if wanted in _OF_BYTES:
            return KINDS[wanted]
        read = _DECODERS[kind]
        return lambda value: KINDS[wanted](read(value, form))


def _decompressed(key: str, shard: Mapping[str, Any], content: Buffer) -> Buffer:
    require("compressed MDS", "blocks")
    from pyarrow import ArrowException, BufferReader, CompressedInputStream

    name = str(shard.get("compression")).partition(":")[0]
    if name not in _CODECS:
        raise refusal(key, f"is compressed with {name}; known are {', '.join(sorted(_CODECS))}")
    try:
        with CompressedInputStream(BufferReader(content), _CODECS[name]) as stream:
            return memoryview(stream.read())
    except (ArrowException, OSError, ValueError) as error:
        raise FileCorrupt(key, f"cannot be decompressed: {message_of(error)}") from None


def _row(content: memoryview, bounds: NDArray[np.int64], columns: _Columns) -> Row:
    at, end = bounds.tolist()
    sizes = []
    for _, size, _ in columns:
        if not size:
            size = int.from_bytes(content[at : at + _WORD], "little")  # noqa: PLW2901
            at += _WORD
        sizes.append(size)
    if at + sum(sizes) != end:
        raise ValueError(f"its columns have {sum(sizes)} bytes of {end - at}")
    row = {}
    for (name, _, read), size in zip(columns, sizes, strict=True):
        if read is not None:
            row[name] = read(bytes(content[at : at + size]))
        at += size
    return row


def _array(value: bytes, form: str) -> torch.Tensor:
    """Read an array: form is its dtype and shape, "float32:3,4"; what is missing stands before it.

    The byte of the dtype and the byte of rank and width follow mosaicml-streaming's `NDArray`.
    """
    dtype, _, shape = form.partition(":")
    at = 0
    if not dtype:
        dtype, at = _ARRAY_TYPES[value[0]], 1
    if shape:
        dimensions = tuple(int(one) for one in shape.split(","))
    else:
        rank, width = value[at] >> 2, 1 << (value[at] & 3)
        at += 1
        dimensions = tuple(np.frombuffer(value[at : at + rank * width], f"<u{width}").tolist())
        at += rank * width
    return torch.from_numpy(np.frombuffer(value[at:], dtype).reshape(dimensions).copy())


def _raw_image(value: bytes, _: str) -> torch.Tensor:
    """Read Pillow's own pixels: width, height, the length of the mode's name, the mode, pixels."""
    from PIL import Image

    width, height, length = np.frombuffer(value[:12], "<u4").tolist()
    mode = value[12 : 12 + length].decode()
    return formats.pixels(Image.frombytes(mode, (width, height), value[12 + length :]))


_ARRAY_TYPES = {
    8: "uint8",
    9: "int8",
    16: "uint16",
    17: "int16",
    18: "float16",
    32: "uint32",
    33: "int32",
    34: "float32",
    64: "uint64",
    65: "int64",
    66: "float64",
}
_DECODERS: Mapping[str, Any] = {
    "bytes": lambda value, _: value,
    "str": lambda value, _: value.decode(),
    "int": lambda value, _: int.from_bytes(value, "little", signed=True),
    "str_int": lambda value, _: int(value),
    "str_float": lambda value, _: float(value),
    "json": lambda value, _: json.loads(value),
    "jpeg": lambda value, _: formats.image(value),
    "png": lambda value, _: formats.image(value),
    "pil": _raw_image,
    "ndarray": _array,
    **{
        name: lambda value, _, name=name: np.frombuffer(value, name)[0].item()
        for name in _ARRAY_TYPES.values()
    },
}
