"""Formats: each knows the blocks of its files, and how to read examples from a block.

Here are those without an index: single files, rows of tokens, and WebDataset. That is tar files in
which the members of an example follow one another. `0001.jpg` and `0001.cls` are the columns `jpg`
and `cls` of an example: the name up to the first dot of its last part is the example's key. To find
the blocks, we read a tar's headers once and keep a note of them beside it, or in this machine's
cache if it is in a bucket.
"""

import io
import json
import os
import tarfile
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from downpour.base.errors import FileCorrupt, SpecError
from downpour.files.store.layout import Buffer
from downpour.learning.blocks.places import BlockPlace, RangeFile, refusal

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


_TOKENS_BYTES = 1 << 22


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
        whole = max(1, _TOKENS_BYTES // (length * size))
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


_TAR_BYTES = 1 << 23
_HEADER_BYTES = 1 << 12
_END_BYTES = 2 * tarfile.BLOCKSIZE
_NOTERS = 16


class Tars:
    """The examples of all tars of a place, in blocks of some megabytes."""

    def __init__(self, place: BlockPlace, wanted: Wanted) -> None:
        self._wanted = wanted
        with ThreadPoolExecutor(_NOTERS) as readers:
            found = list(readers.map(lambda key: _indexed(place, key), place.files))
        self.blocks = [block for blocks in found for block in blocks]

    def open(self, block: Block, content: Buffer) -> OpenBlock:
        """Return a part of a tar, which must have as many examples as our note says."""
        members = [one for _, one in _examples(block.key, io.BytesIO(content))]
        if len(members) != block.count:
            accepted = (
                f"holds {len(members)} examples from byte {block.begin} on, but its note says "
                f"{block.count}: remove {_note(block.key)}"
            )
            raise FileCorrupt(block.key, accepted)
        return OpenBlock(len(content), lambda number: self._row(content, members[number]))

    def _row(self, content: Buffer, places: dict[str, tuple[int, int]]) -> Row:
        kinds = chosen(self._wanted, {name: kind_of_file(f"x.{name}") for name in places})
        read = {name: bytes(content[slice(*places[name])]) for name in kinds}
        return {name: KINDS[kind](read[name]) for name, kind in kinds.items()}


def _indexed(place: BlockPlace, key: str) -> list[Block]:
    """Return a tar's blocks, from our note of it if the tar is still the same."""
    file, name = place.files[key], _note(key)
    try:
        note = json.loads(place.noted(name) or b"{}")
        if note.get("size") == file.size_bytes and note.get("tag") == file.tag:
            return [Block(key, *map(int, one)) for one in note["blocks"]]
    except (ValueError, TypeError, KeyError, AttributeError):
        pass  # we write it again below
    blocks = list(_blocks(place, key))
    lines = [[one.begin, one.end, one.count] for one in blocks]
    note = {"size": file.size_bytes, "tag": file.tag, "blocks": lines}
    place.note(name, json.dumps(note).encode())
    return blocks


def _note(key: str) -> str:
    folder, slash, name = key.rpartition("/")
    return f"{folder}{slash}.{name}.blocks"


def _blocks(place: BlockPlace, key: str) -> Iterator[Block]:
    size = place.files[key].size_bytes
    if any(place.read(key, max(0, size - _END_BYTES), size)):
        raise refusal(key, "is cut, or no tar file: it does not end in zeros")
    begin, end, count = 0, 0, 0
    read = partial(place.read, key)
    ahead = _TAR_BYTES if place.is_remote else _HEADER_BYTES
    file = io.BufferedReader(RangeFile(read, size), ahead)
    for start, members in _examples(key, file):
        if count and end - begin >= _TAR_BYTES:
            yield Block(key, begin, start, count)
            begin, count = start, 0
        end = max(stop for _, stop in members.values())
        end += -end % tarfile.BLOCKSIZE
        count += 1
    if count:
        yield Block(key, begin, end, count)


def _examples(
    key: str, file: io.BufferedIOBase
) -> Iterator[tuple[int, dict[str, tuple[int, int]]]]:
    """Yield where each example of a tar begins, and its members' bytes by column."""
    begin, known = 0, ("", "")
    members: dict[str, tuple[int, int]] = {}
    try:
        with tarfile.open(fileobj=file, mode="r:") as opened:
            while member := opened.next():
                opened.members = []  # type: ignore[attr-defined] # it would remember all of them
                if member.issparse() or member.islnk() or member.issym():
                    raise refusal(key, f"{member.name} is sparse or a link: write whole files")
                if not member.isfile():
                    continue
                folder, _, last = member.name.rpartition("/")
                stem, _, column = last.partition(".")
                if members and (folder, stem) != known:
                    yield begin, members
                    members = {}
                if not members:
                    begin, known = member.offset, (folder, stem)
                if column.lower() in members:
                    raise refusal(key, f"has {member.name} twice")
                kind_of_file(f"{key}/{last}")
                data = member.offset_data
                members[column.lower()] = data, data + member.size
            # It takes a damaged header for the tar's end.
            file.seek(opened.offset)
            if any(map(any, iter(partial(file.read, _TAR_BYTES), b""))):
                raise refusal(key, f"is damaged: no member begins at byte {opened.offset}")
    except tarfile.TarError as error:
        raise refusal(key, f"is no tar file: {error}") from None
    if members:
        yield begin, members
