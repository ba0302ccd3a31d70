"""An experiment's record: everything that happened, one JSON line each, for people to read.

Readers project it from the journal (`view.py`) until the journal has ended, and then use the file
`record.jsonl`, which `export_record` writes as a whole. An earlier file of this name is not ours.
"""

import json
import os
import zlib
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import cache
from itertools import accumulate, islice, starmap
from operator import methodcaller
from pathlib import Path
from threading import Lock
from typing import Union

import msgspec

from downpour.base.errors import FileCorrupt, FileMissing, SharedDirectoryError
from downpour.core.node.journal import Line
from downpour.files.store.directory import open_regular, read_regular
from downpour.files.store.layout import RECORD_NAME
from downpour.files.store.publish import publish, reading, writing
from downpour.record import journal
from downpour.record import record_lines as told
from downpour.record.view import LACKS_FIELD, View, dated, to_fields

PAGE_LINES_MAX = 1000
PAGE_BYTES_MAX = 4_000_000
_TOGETHER = 256
"""As many lines are parsed at once; this takes half of the time of one after the other."""
_CONCLUSION_BYTES = 1 << 16
"""The end of a journal that holds its last line."""


class RecordReader:
    """Reads the record of an experiment page by page; safe to share between threads.

    Until the record is exported, the reader projects it from the journal, and follows the journal.
    The journal's lines must count, so a manager makes a reader once it has taken up the journal.
    The lines stay in memory, in compressed blocks.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lock = Lock()
        self._view = View()
        self._next = 1
        self._first: dict[Path, int] = {}
        self._read: dict[Path, int] = {}
        self._done: set[Path] = set()
        self._blocks: list[bytes] = []
        self._tail: list[str] = []
        self._is_whole = self._exports = False

    def lines(self, from_line: int) -> list[str]:
        """Return a page of lines, without their ends, beginning at `from_line` (from 0).

        A page ends after 1000 lines or about four megabytes, at the earlier limit, so that it fits
        into a message; continue at `from_line + len(page)` until a page is empty.
        """
        if from_line < 0:
            return []
        block, skipped = divmod(from_line, PAGE_LINES_MAX)
        with self._lock:
            self._catch_up()
            found = self._block(block)[skipped:]
        ends = accumulate(len(line) + 1 for line in found)
        # At least one line, however long, because a reader could not continue after an empty page.
        return found[: max(1, sum(end <= PAGE_BYTES_MAX for end in ends))]

    def all_lines(self) -> Iterator[str]:
        """Yield all lines so far, as they follow from the journal until a run removes it."""
        with self._lock:
            self._exports = True
            self._catch_up()
            blocks = len(self._blocks) + 1
        for number in range(blocks):
            yield from self._block(number)

    def take(self) -> Iterator[told.Dated]:
        """Yield the record's new lines since the last call, and keep none of them."""
        for line in self._gained():
            yield from self._view.take(line)

    def _block(self, number: int) -> list[str]:
        if number < len(self._blocks):
            return zlib.decompress(self._blocks[number]).decode().splitlines()
        return list(self._tail) if number == len(self._blocks) else []

    def _catch_up(self) -> None:
        if self._is_whole:
            return
        follows = self._exports or self._next > 1
        if not is_exported(self._folder / RECORD_NAME) or (
            follows and journal.segments(self._folder)
        ):
            try:
                self._append(starmap(line_text, self.take()))
            except SharedDirectoryError:
                # A run removes its journal once the record is exported, perhaps while we read it.
                if not is_exported(self._folder / RECORD_NAME):
                    raise
            else:
                return
        self._is_whole = True
        content = read_regular(self._folder / RECORD_NAME)
        known = PAGE_LINES_MAX * len(self._blocks) + len(self._tail)
        self._append(content.decode(errors="replace").split("\n")[known:-1])

    def _append(self, texts: Iterable[str]) -> None:
        for text in texts:
            self._tail.append(text)
            if len(self._tail) == PAGE_LINES_MAX:
                self._blocks.append(zlib.compress("\n".join(self._tail).encode(), level=1))
                self._tail = []

    def _gained(self) -> Iterator[Line]:
        """Yield the lines that count, in order, as `in_order` does, without holding all of them."""
        files = [path for path in journal.segments(self._folder) if path not in self._done]
        for path in files:
            if path not in self._first and (number := journal.first_number(path)) is not None:
                self._first[path] = number
        for path in files:
            end = _end_of(path, self._first)
            for lines in self._pieces(path):
                yield from self._counting(lines, end)
        self._done.update(files[:-1])  # a manager appends only to its last segment

    def _pieces(self, path: Path) -> Iterator[list[Line]]:
        while True:
            offset = self._read.get(path, 0)
            lines, self._read[path] = journal.lines_from(path, offset)
            yield lines
            if self._read[path] - offset < journal.PIECE_BYTES:
                return

    def _counting(self, lines: list[Line], end: int | None) -> Iterator[Line]:
        for line in lines:
            if end is not None and line.number >= end:
                return
            if line.number > self._next:
                raise FileCorrupt("journal", f"entry {self._next} is missing or altered")
            # A manager repeats lines that it doubts.
            if line.number == self._next:
                self._next += 1
                yield line


def line_text(at_seconds: float, line: told.RecordLine) -> str:
    """Return the text of a record's line, without the line end."""
    # `to_fields` writes null for NaN; a NaN that got through would make a line that is not JSON.
    return json.dumps({"at": at_seconds, **to_fields(line)}, allow_nan=False)


def export_record(folder: Path, lines: Iterable[str]) -> None:
    """Write the record of an experiment that has ended, in place of a file with other lines."""
    path, content = folder / RECORD_NAME, "".join(f"{line}\n" for line in lines).encode()
    if not _is_there(path) or read_regular(path) != content:
        with writing(folder, RECORD_NAME):
            path.unlink(missing_ok=True)
        publish(folder, RECORD_NAME, [content])


def has_record(folder: Path) -> bool:
    """Whether a folder has a record, or a journal to make one from."""
    return (folder / RECORD_NAME).is_file() or bool(journal.segments(folder))


def read_record(path: Path) -> list[told.Dated]:
    """Read a record as (seconds, line) in the order written; a torn last line is left out.

    Args:
        path: its file; until the journal beside it ends, we project the record from that.
    """
    return [*_known(stream_record(path))]


def stream_record(path: Path, without: Collection[str] = ()) -> Iterator[told.MaybeKnown]:
    """Yield the lines that `read_record` returns, and keep none of them.

    Lines `without` interest, by kind, are not parsed: like kinds that this version does not know,
    they are None.
    """
    given = 0
    if not is_exported(path):
        is_journaled = path.parent.is_dir() and journal.segments(path.parent)
        try:
            for line in RecordReader(path.parent).take() if is_journaled else ():
                yield line
                given += 1
        except SharedDirectoryError:
            if not is_exported(path):
                raise
        # We look once more, because a run removes its journal when its record exists.
        if not is_exported(path):
            if not is_journaled:
                raise FileMissing(str(path))
            return
    with reading(path.parent, path.name), open(open_regular(path), "rb") as record:
        whole = filter(methodcaller("endswith", b"\n"), record)
        yield from islice(stream_lines(whole, str(path), without), given, None)


def task_lines(folder: Path, round_number: int, shard: int) -> Iterator[told.Dated]:
    """Yield a record's lines about the attempts at one task, without parsing other lines.

    Round and shard count from 0. This takes as long as reading the file.
    """
    path = folder / RECORD_NAME
    if is_exported(path):
        words = f'"round": {round_number}, "shard": {shard}, '.encode()
        with reading(folder, path.name), open(open_regular(path), "rb") as record:
            yield from _known(stream_lines((text for text in record if words in text), path.name))
        return
    yield from journaled_lines(folder, f'"round":{round_number},"shard":{shard},'.encode())


def journaled_lines(folder: Path, words: bytes) -> Iterator[told.Dated]:
    """Yield the record's lines from the entries of a journal that have these words."""
    files = journal.segments(folder)
    first = {file: number for file in files if (number := journal.first_number(file)) is not None}
    last = 0
    for file in files:
        end = _end_of(file, first)
        for line in journal.lines_with(file, words):
            if line.number > last and (end is None or line.number < end):
                last = line.number
                yield from View().take(line)


def _end_of(segment: Path, first: Mapping[Path, int]) -> int | None:
    """Return where the lines of a segment end: at the first number of a later term."""
    term = journal.term_of(segment)
    return min((n for other, n in first.items() if journal.term_of(other) > term), default=None)


def is_exported(path: Path) -> bool:
    """Whether a record's file is there, and the journal beside it has ended or is gone."""
    folder, is_there = path.parent, _is_there(path)
    for last in journal.segments(folder)[-1:] if is_there else ():
        # Nothing follows a conclusion. A run may remove its journal at any moment after that.
        with reading(folder), suppress(FileNotFoundError), open(open_regular(last), "rb") as end:
            end.seek(max(0, os.fstat(end.fileno()).st_size - _CONCLUSION_BYTES))
            return b'"kind":"concluded"' in end.read()
    return is_there


def _is_there(path: Path) -> bool:
    # We don't take an error for a missing file: a folder without a record counts as never begun,
    # and the next manager to start removes it.
    with reading(path.parent, path.name):
        return path.exists()


def parse_lines(lines: Iterable[str], source: str = "record") -> list[told.Dated]:
    """Parse whole lines of a record; skip kinds that this version does not know."""
    return [*_known(stream_lines((line.encode(errors="replace") for line in lines), source))]


def stream_lines(
    lines: Iterable[bytes], source: str = "record", without: Collection[str] = ()
) -> Iterator[told.MaybeKnown]:
    """Parse whole lines of a record, as `stream_record` does."""
    decoders = _decoders(frozenset(without))
    number, left = 1, iter(lines)
    while several := [*islice(left, _TOGETHER)]:
        text = b"\n".join(several)
        try:
            parsed = [*zip(*[each.decode_lines(text) for each in decoders], strict=True)]
        except (ValueError, RecursionError):
            parsed = []
        if len(parsed) == len(several):
            for time, line in parsed:
                yield time.at, None if isinstance(line, _Skipped) else line
        else:  # a line is empty or damaged, or has null for NaN
            yield from _one_by_one(several, number, source, decoders)
        number += len(several)


class _Time(msgspec.Struct, gc=False):
    at: float


class _Skipped(msgspec.Struct, gc=False, tag_field="kind"):
    """A line that a reader does without."""


_Decoders = tuple[msgspec.json.Decoder[_Time], msgspec.json.Decoder[told.RecordLine | _Skipped]]


@cache
def _decoders(without: frozenset[str]) -> _Decoders:
    kinds = (
        msgspec.defstruct("_Skipped", [], bases=(_Skipped,), tag=kind) if kind in without else line
        for kind, line in told.KINDS.items()
        if line is not told.SubmittedLine  # `dated` checks its spec
    )
    return msgspec.json.Decoder(_Time), msgspec.json.Decoder(Union[*kinds])


def _one_by_one(
    lines: Iterable[bytes], first: int, source: str, decoders: _Decoders
) -> Iterator[told.MaybeKnown]:
    for number, text in enumerate(lines, start=first):
        try:
            parsed = _parsed(text, *decoders)
        # `json` raises RecursionError for brackets nested by the thousand.
        except (ValueError, RecursionError) as error:
            reason = f"line {number} is not a fact of an experiment"
            if str(error).startswith(LACKS_FIELD):
                reason += ": an older build of Downpour wrote it"
            raise FileCorrupt(source, reason) from None
        yield parsed


def _parsed(
    text: bytes,
    times: msgspec.json.Decoder[_Time],
    facts: msgspec.json.Decoder[told.RecordLine | _Skipped],
) -> told.MaybeKnown:
    try:
        time, line = times.decode(text), facts.decode(text)
    except (ValueError, RecursionError):
        # This takes ten times as long, reads null as NaN, and says why a line is none.
        return dated(json.loads(text.decode(errors="replace")))
    return time.at, None if isinstance(line, _Skipped) else line


def _known(lines: Iterable[told.MaybeKnown]) -> Iterator[told.Dated]:
    return ((at, line) for at, line in lines if line is not None)
