"""Parameters to bytes and back, in the safetensors layout.

Eight bytes give the length of the header. Then come that many bytes of JSON, and then the tensors'
bytes without a gap. We order tensors by falling item size, dtype and name, so that each is aligned
in memory and equal dtypes are adjacent. Equal tensors and metadata always give equal bytes. A
header may come from any process, so we check all of it against the file, and any contradiction
makes the file corrupt. Format: https://github.com/huggingface/safetensors#format

Unlike those of the `safetensors` library, our reader and writer copy nothing: `encode` returns the
tensors' own memory, and `decode` returns views.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from downpour.base.errors import FileCorrupt, SpecError
from downpour.files.store.layout import Buffer

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]

HEADER_BYTES_MAX = 16 * 2**20

_LENGTH_BYTES = 8
# The size of the largest item. We pad the header to it, and order tensors by falling item size, so
# each tensor begins at a multiple of its item size.
_ALIGNMENT_BYTES = 8
# numpy 1 allows 32 dimensions. It counts bytes in 63 bits, which must also suffice if we convert
# the array to the largest items.
_DIMENSIONS_MAX = 32
_ELEMENTS_MAX = (2**63 - 1) // _ALIGNMENT_BYTES
_METADATA = "__metadata__"

DTYPES: dict[str, np.dtype[Any]] = {
    "F64": np.dtype("<f8"),
    "F32": np.dtype("<f4"),
    "F16": np.dtype("<f2"),
    "I64": np.dtype("<i8"),
    "I32": np.dtype("<i4"),
    "I16": np.dtype("<i2"),
    "I8": np.dtype("i1"),
    "U8": np.dtype("u1"),
    "BOOL": np.dtype("?"),
}
CODES = {dtype: code for code, dtype in DTYPES.items()}

BFLOAT16 = np.dtype("V2")
"""Two bytes, for which numpy has no numbers."""
FOREIGN_DTYPES = {**DTYPES, "BF16": BFLOAT16}
"""All dtypes that files of other programs may hold."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorEntry:
    """One tensor's place: its bytes are `start` to `stop`, counted from the end of the header."""

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class Layout:
    """The places of all tensors, in the order of their bytes; we can fold equal layouts."""

    entries: tuple[TensorEntry, ...]

    @property
    def size_bytes(self) -> int:
        """The total size of the tensors' bytes."""
        return max((entry.stop for entry in self.entries), default=0)

    def views(self, data: Array) -> dict[str, Array]:
        """Return the tensors in `data` (uint8, all the tensors' bytes) by name, without copying."""
        return {
            entry.name: data[entry.start : entry.stop].view(entry.dtype).reshape(entry.shape)
            for entry in self.entries
        }


def plan_layout(tensors: Mapping[str, Array]) -> Layout:
    """Return the place of each tensor."""
    order = sorted((-array.itemsize, _code(name, array), name) for name, array in tensors.items())
    entries = []
    start = 0
    for _, code, name in order:
        array = tensors[name]
        stop = start + array.nbytes
        entries.append(
            TensorEntry(name=name, dtype=DTYPES[code], shape=array.shape, start=start, stop=stop)
        )
        start = stop
    return _in_order(entries)


def write_header(layout: Layout, metadata: Mapping[str, str]) -> bytes:
    """Render a header, padded with spaces so that the tensors' bytes begin aligned."""
    fields: dict[str, object] = {_METADATA: dict(sorted(metadata.items()))} if metadata else {}
    for entry in layout.entries:
        fields[entry.name] = {
            "dtype": CODES[entry.dtype],
            "shape": entry.shape,
            "data_offsets": (entry.start, entry.stop),
        }
    text = json.dumps(fields, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _ALIGNMENT_BYTES)
    if len(text) > HEADER_BYTES_MAX:
        raise ValueError(f"a header of {len(text)} bytes; at most {HEADER_BYTES_MAX} are accepted")
    return len(text).to_bytes(_LENGTH_BYTES, "little") + text


class _HeaderError(ValueError):
    """A mistake in a header."""


def _checked_header(
    buffer: memoryview, dtypes: Mapping[str, np.dtype[Any]]
) -> tuple[Layout, dict[str, str], int]:
    """Return a file's layout and metadata, and where its tensors' bytes begin."""
    if len(buffer) < _LENGTH_BYTES:
        raise _HeaderError(f"{len(buffer)} bytes are too few")
    length = int.from_bytes(buffer[:_LENGTH_BYTES], "little")
    data_start = _LENGTH_BYTES + length
    if length > HEADER_BYTES_MAX or data_start > len(buffer):
        raise _HeaderError(f"a header of {length} bytes in a file of {len(buffer)}")
    fields = _parsed(bytes(buffer[_LENGTH_BYTES:data_start]))
    metadata = fields.pop(_METADATA, {})
    if not isinstance(metadata, dict) or not all(isinstance(v, str) for v in metadata.values()):
        raise _HeaderError("its metadata are not strings by name")
    layout = _in_order([_checked_entry(name, field, dtypes) for name, field in fields.items()])
    end = 0
    for entry in layout.entries:
        if entry.start != end:
            raise _HeaderError(f"tensor {entry.name!r} begins at {entry.start}, not at {end}")
        end = entry.stop
    if end != len(buffer) - data_start:
        raise _HeaderError(f"tensors of {end} bytes in {len(buffer) - data_start}")
    return layout, metadata, data_start


def _parsed(text: bytes) -> dict[str, Any]:
    try:
        fields = json.loads(text.decode(), object_pairs_hook=_without_doubles)
    except (ValueError, RecursionError) as error:
        raise _HeaderError(f"its header cannot be read ({error})") from None
    if not isinstance(fields, dict):
        raise _HeaderError("its header is not a JSON object")
    return fields


def _without_doubles(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    # Python's `json` would keep the last of two equal names, but another reader may keep the first.
    if len(fields) != len(pairs):
        raise _HeaderError("a name appears twice")
    return fields


def _checked_entry(name: str, field: object, dtypes: Mapping[str, np.dtype[Any]]) -> TensorEntry:
    if not isinstance(field, dict) or set(field) != {"dtype", "shape", "data_offsets"}:
        raise _HeaderError(f"tensor {name!r} lacks a dtype, a shape or offsets")
    dtype = dtypes.get(field["dtype"]) if isinstance(field["dtype"], str) else None
    if dtype is None:
        raise _HeaderError(f"tensor {name!r} has the unknown dtype {field['dtype']!r}")
    shape, offsets = _naturals(name, field["shape"]), _naturals(name, field["data_offsets"])
    # A size of 0 counts as 1: numpy refuses a shape whose other sizes overflow, although it is
    # empty.
    if len(shape) > _DIMENSIONS_MAX or math.prod(size or 1 for size in shape) > _ELEMENTS_MAX:
        raise _HeaderError(f"tensor {name!r} has an impossible shape")
    if len(offsets) != 2 or offsets[1] - offsets[0] != math.prod(shape) * dtype.itemsize:
        raise _HeaderError(f"tensor {name!r} of shape {list(shape)} cannot be at {list(offsets)}")
    return TensorEntry(name=name, dtype=dtype, shape=shape, start=offsets[0], stop=offsets[1])


def _naturals(name: str, numbers: object) -> tuple[int, ...]:
    # We compare with `type`, because `isinstance` takes true and false for integers.
    if not isinstance(numbers, list) or not all(type(n) is int and n >= 0 for n in numbers):
        raise _HeaderError(f"tensor {name!r} has {str(numbers)[:40]!r} where numbers belong")
    return tuple(numbers)


def _code(name: str, array: Array) -> str:
    code = CODES.get(array.dtype.newbyteorder("<"))
    if code is None:
        accepted = f"{name} cannot be stored; parameters have dtype {', '.join(DTYPES)}"
        raise SpecError("model", str(array.dtype), accepted)
    return code


def _in_order(entries: list[TensorEntry]) -> Layout:
    """Order entries by place; empty tensors share theirs, so the name decides between them."""
    ordered = sorted(entries, key=lambda entry: (entry.start, entry.stop, entry.name))
    return Layout(tuple(ordered))


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

    `name` is for errors, and `dtypes` are the types that tensors may have.
    """
    flat = memoryview(buffer).cast("B").toreadonly()
    try:
        layout, metadata, start = _checked_header(flat, dtypes)
    except _HeaderError as error:
        raise FileCorrupt(name, f"is not a parameter file: {error}") from None
    head, data = flat[:start], np.frombuffer(flat, np.uint8)[start:]
    tensors = layout.views(data)
    return ParameterFile(tensors=tensors, metadata=metadata, layout=layout, head=head, data=data)
