"""WebDataset: tar files in which the members of an example follow one another.

`0001.jpg` and `0001.cls` are the columns `jpg` and `cls` of an example: the name up to the first
dot of its last part is the example's key. To find the blocks, we read a tar's headers once and keep
a note of them beside it, or in this machine's cache if it is in a bucket.
"""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from downpour.base.errors import FileCorrupt
from downpour.files.store.layout import Buffer
from downpour.learning.blocks.formats import (
    KINDS,
    Block,
    OpenBlock,
    Row,
    Wanted,
    chosen,
    kind_of_file,
)
from downpour.learning.blocks.places import BlockPlace, RangeFile, refusal

_BLOCK_BYTES = 1 << 23
_HEADER_BYTES = 1 << 12
_END_BYTES = 2 * tarfile.BLOCKSIZE
_READERS = 16


class Tars:
    """The examples of all tars of a place, in blocks of some megabytes."""

    def __init__(self, place: BlockPlace, wanted: Wanted) -> None:
        self._wanted = wanted
        with ThreadPoolExecutor(_READERS) as readers:
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
    ahead = _BLOCK_BYTES if place.is_remote else _HEADER_BYTES
    file = io.BufferedReader(RangeFile(read, size), ahead)
    for start, members in _examples(key, file):
        if count and end - begin >= _BLOCK_BYTES:
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
            if any(map(any, iter(partial(file.read, _BLOCK_BYTES), b""))):
                raise refusal(key, f"is damaged: no member begins at byte {opened.offset}")
    except tarfile.TarError as error:
        raise refusal(key, f"is no tar file: {error}") from None
    if members:
        yield begin, members
