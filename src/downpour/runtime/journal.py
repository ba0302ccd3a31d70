"""What a manager must not forget of an experiment: numbered, checksummed lines in its folder.

Each line (`lines.py`) is JSON: the entry's number, its time, how long the record was when it was
made, and the entry (`scheduler.replay` says which there are). The first one names the cluster, so
that a folder which was copied from elsewhere is known as such. Lines are only
appended, and `commit` returns when they are durable. A manager begins a segment of its own, and
another one after a write that failed: what had not been confirmed is then written again under the
same numbers, so that a torn line in the middle is made good by the segment after it. Segments are
read in the order of their numbers; of two lines with one number the later counts, and with the
first line of a later term end those of the terms before it.

A manager that takes up a journal writes what it has read before its own first line, so that nothing
which another one writes or removes meanwhile can take the ground from under it.

A checkpoint begins the journal anew: submission, preparation and checkpoint are published together
as a segment, so that it is there whole or not at all, and the segments before it are removed. Who
finds them still there begins to read at the last segment that has an entry of number 1.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from downpour.errors import FileCorrupt, SharedDirectoryError, StoreError
from downpour.runtime.lines import seal, whole_lines
from downpour.scheduler import Checkpoint, Entry
from downpour.scheduler import commands as do
from downpour.scheduler import events as on
from downpour.store.directory import names_in, open_regular
from downpour.store.publish import publish, sync_directory
from downpour.store.trouble import reading, writing

_KINDS: dict[str, type[Entry]] = {
    "submitted": on.ExperimentSubmitted,
    "prepared": on.Prepared,
    "assigned": do.Assign,
    "accepted": do.Accept,
    "saved": do.Save,
    "dropped": do.Drop,
    "resized": do.Resize,
    "given-up": do.GiveUp,
    "aggregated": on.Aggregated,
    "evaluated": on.Evaluated,
    "published": on.ModelPublished,
    "concluded": do.Conclude,
    "checkpoint": Checkpoint,
}
_HEAD = on.ExperimentSubmitted, on.Prepared
_KIND_OF = {entry: kind for kind, entry in _KINDS.items()}
_ADAPTERS: dict[str, TypeAdapter[Any]] = {kind: TypeAdapter(e) for kind, e in _KINDS.items()}
_SEGMENT = re.compile(r"journal-(\d+)-(\d+)\.jsonl")


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """An entry with its number (from 1), its time, and the lines that the record had by then.

    `order` is its place among the entries of all experiments. The first line of a journal has the
    `cluster` whose manager writes it; one without any is of a version that did not say.
    """

    number: int
    order: int
    at_seconds: float
    record_lines: int
    entry: Entry
    cluster: str = ""


class Journal:
    """Appends to one experiment's journal, under one manager's term; for one thread.

    Args:
        folder: the experiment's; it exists.
        term: the manager's, so that no two managers write to one file.
        lines: what the journal holds already.
        cluster: the manager's.
    """

    def __init__(
        self, folder: Path, term: int, lines: Sequence[Line] = (), *, cluster: str = ""
    ) -> None:
        self._folder = folder
        self._term = term
        self._cluster = cluster
        self._head = [line for line in lines if isinstance(line.entry, _HEAD)]
        self._next = len(lines) + 1
        self._anew = [self._sealed(line) for line in lines]
        self._segment = 0
        self._file: int | None = None
        self._unwritten: list[bytes] = []
        self._unconfirmed: list[bytes] = []

    def append(self, order: int, at_seconds: float, record_lines: int, entry: Entry) -> None:
        """Take an entry in; it is not durable before the next `commit`."""
        line = Line(
            number=self._next,
            order=order,
            at_seconds=at_seconds,
            record_lines=record_lines,
            entry=entry,
        )
        if isinstance(entry, _HEAD):
            self._head.append(line)
        self._unwritten.append(self._sealed(line))
        self._next += 1

    def begin_anew(
        self, order: int, at_seconds: float, record_lines: int, entry: Checkpoint
    ) -> None:
        """Take in a checkpoint, and forget what is in the journal before it."""
        self._next = 1
        self._unwritten, self._unconfirmed = [], []
        head, self._head = self._head, []
        for line in head[:2]:
            self.append(line.order, line.at_seconds, line.record_lines, line.entry)
        self.append(order, at_seconds, record_lines, entry)
        self._anew, self._unwritten = self._unwritten, []

    def commit(self, *, durably: bool = True) -> None:
        """Write what was appended; it outlives this process then, and with `durably` the machine.

        Raises:
            SharedDirectoryError: the directory refuses; calling again writes all that is not yet
                known to be durable into a new segment.
            StoreError: such a file cannot be written.
        """
        if self._anew:
            self._publish_anew()
        if not self._unwritten and not (durably and self._unconfirmed):
            return
        try:
            with writing(self._folder, "journal"):
                self._write(durably=durably)
        except StoreError:
            self.close()
            self._unwritten = self._unconfirmed + self._unwritten
            self._unconfirmed = []
            raise

    def _sealed(self, line: Line) -> bytes:
        return _written(replace(line, cluster=self._cluster) if line.number == 1 else line)

    def _publish_anew(self) -> None:
        self.close()
        former = segments(self._folder)
        if any(term_of(path) > self._term for path in former):
            raise SharedDirectoryError(self._folder, "another manager has taken over")
        publish(self._folder, self._next_name(), self._anew)
        self._anew = []
        for path in former:
            with suppress(OSError):  # what stays is not read
                path.unlink()

    def _next_name(self) -> str:
        self._segment += 1
        return f"journal-{self._term:06d}-{self._segment:04d}.jsonl"

    def _write(self, *, durably: bool) -> None:
        descriptor = self._open()
        content = b"".join(self._unwritten)
        while content:
            content = content[os.write(descriptor, content) :]
        self._unconfirmed += self._unwritten
        self._unwritten = []
        if durably:
            os.fsync(descriptor)
            self._unconfirmed = []

    def close(self) -> None:
        """Let go of the file; what was not committed is lost with this object."""
        if self._file is not None:
            descriptor, self._file = self._file, None
            with suppress(OSError):  # what counts was synced before
                os.close(descriptor)

    def _open(self) -> int:
        if self._file is None:
            path = self._folder / self._next_name()
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC
            self._file = os.open(path, flags, 0o666)
            sync_directory(self._folder)
        return self._file


def read_journal(folder: Path) -> list[Line]:
    """Return an experiment's entries in order; empty where it has no journal.

    What a crash has torn at the end is left out; what is returned is durable.

    Raises:
        FileCorrupt: an entry is missing or altered, and later ones are there.
        SharedDirectoryError: the folder cannot be read.
    """
    return in_order(_read(segment) for segment in segments(folder))


def in_order(parts: Iterable[tuple[int, Sequence[Line]]]) -> list[Line]:
    """Put the lines of a journal in order.

    A manager whose lock was lost may write beside the one that has followed it. Where the later one
    has begun to write, what the earlier one has written from there on belongs to no story.

    Args:
        parts: a segment's term and whole lines, in the order in which they are read.

    Raises:
        FileCorrupt: an entry is missing, and later ones are there.
    """
    found: dict[int, Line] = {}
    latest = 0
    for term, lines in parts:
        if lines and (term > latest or lines[0].number == 1):
            latest = term
            found = {number: line for number, line in found.items() if number < lines[0].number}
        found.update((line.number, line) for line in lines)
    for number in range(1, max(found, default=0) + 1):
        if number not in found:
            raise FileCorrupt("journal", f"entry {number} is missing or altered")
    return [found[number] for number in sorted(found)]


def segments(folder: Path) -> list[Path]:
    """Return the files of a journal, in the order in which they are read.

    Raises:
        SharedDirectoryError: the folder cannot be listed.
    """
    found = ((_SEGMENT.fullmatch(name), folder / name) for name in names_in(folder))
    # By the numbers: a name with one digit more sorts before those that it follows.
    numbered = [((int(match[1]), int(match[2])), path) for match, path in found if match]
    return [path for _, path in sorted(numbered)]


def _written(line: Line) -> bytes:
    kind = _KIND_OF[type(line.entry)]
    body = {
        "number": line.number,
        "order": line.order,
        "at": line.at_seconds,
        "record": line.record_lines,
        "kind": kind,
        "entry": _ADAPTERS[kind].dump_python(line.entry, mode="json"),
        **({"cluster": line.cluster} if line.cluster else {}),
    }
    return seal(json.dumps(body, separators=(",", ":")).encode())


def _read(segment: Path) -> tuple[int, list[Line]]:
    """Return a segment's term and its lines; durable now, for its writer need not have synced it.

    Whoever goes on from here syncs what he adds, and no gap may open before that.
    """
    with (
        reading(segment.parent, segment.name),
        open(open_regular(segment), "rb") as file,
    ):
        content = file.read()
        os.fsync(file.fileno())
    return term_of(segment), list(_lines(content))


def term_of(segment: Path) -> int:
    """Return the term of the manager that wrote a segment."""
    return int(segment.name.split("-")[1])


def _lines(content: bytes) -> Iterator[Line]:
    """Read the lines that are whole; the others count as not there."""
    for text in whole_lines(content):
        body = json.loads(text)
        try:
            entry = _ADAPTERS[body["kind"]].validate_python(body["entry"])
        except (KeyError, ValidationError) as error:
            reason = f"entry {body.get('number')} is not of this version: {type(error).__name__}"
            raise FileCorrupt("journal", reason) from error
        yield Line(
            number=body["number"],
            order=body["order"],
            at_seconds=body["at"],
            record_lines=body["record"],
            entry=entry,
            cluster=body.get("cluster", ""),
        )
