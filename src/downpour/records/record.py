"""An experiment's record: everything that happened in it, one JSON line a fact, in its folder.

The manager alone writes, and only appends; readers are reports, the dashboard and whoever asks
over RPC. It serves people: nothing is ever decided from it, and losing its last line in a crash
costs no result. So it is flushed line by line but not synced, and other hosts see it for certain
once it is closed; while an experiment runs they ask the manager.
"""

from __future__ import annotations

import json
import os
import re
from bisect import bisect_right
from collections.abc import Iterable
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import Self

from downpour.errors import FileCorrupt, FileMissing, StoreError
from downpour.records.record_lines import RecordLine, from_fields, to_fields
from downpour.store.directory import open_regular, read_regular
from downpour.store.os_errors import reading, writing

PAGE_LINES_MAX = 1000
PAGE_BYTES_MAX = 4_000_000


class RecordReader:
    """Hands out pages of a record, to any thread.

    Args:
        path: the record's file.

    Raises:
        SharedDirectoryError: where the file cannot be read.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._begins = self._index(path)

    def _index(self, path: Path) -> list[int]:
        """Return where each line begins, and behind the last one where the next will."""
        return _begins(read_regular(path))

    def lines(self, from_line: int) -> list[str]:
        """Return a page of lines, without their ends, beginning at `from_line` (from 0).

        A page ends after 1000 lines or about four megabytes, whichever comes first, so that it
        fits into a message; go on at `from_line + len(page)` until a page is empty.

        Raises:
            SharedDirectoryError: where the file cannot be read.
        """
        begins, end = self._begins, len(self._begins) - 1
        if not 0 <= from_line < end:
            return []
        fits = bisect_right(begins, begins[from_line] + PAGE_BYTES_MAX, hi=end + 1) - 1
        stop = min(max(fits, from_line + 1), from_line + PAGE_LINES_MAX)
        size = begins[stop] - begins[from_line]
        with (
            reading(self._path.parent, self._path.name),
            open(open_regular(self._path), "rb") as file,
        ):
            page = os.pread(file.fileno(), size, begins[from_line])
        return page.decode("utf-8").splitlines()


class RecordWriter(RecordReader):
    """Appends facts to a record and hands out pages of it; a context manager.

    One thread writes; any thread may read pages meanwhile, and also after it was closed. Where a
    record exists already it is continued, without the torn line that a crash may have left.

    Args:
        path: the record's file; its folder exists.

    Raises:
        SharedDirectoryError: where the file cannot be opened.
        FileCorrupt: where it is no regular file.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._pending: list[bytes] = []

    def _index(self, path: Path) -> list[int]:
        with self._writing():
            # Unbuffered: a line that could not be written must not come back with the next one.
            flags = os.O_RDWR | os.O_CREAT | os.O_APPEND
            self._file = os.fdopen(open_regular(path, flags), "a+b", buffering=0)
            self._file.seek(0)
            begins = _begins(self._file.read())
            self._file.truncate(begins[-1])
        return begins

    def append(self, at_seconds: float, fact: RecordLine) -> None:
        """Take a fact in; `flush` writes it."""
        line = json.dumps({"at": at_seconds, **to_fields(fact)}, allow_nan=False).encode() + b"\n"
        self._pending.append(line)

    def flush(self) -> None:
        """Write what was appended.

        Raises:
            SharedDirectoryError: where the file cannot take it all; the record ends with a whole
                line, and calling again writes the rest.
        """
        while self._pending:
            rest = line = self._pending[0]
            try:
                with self._writing():
                    while rest:  # a disk that fills up takes a part and refuses the rest
                        rest = rest[self._file.write(rest) :]
            except StoreError:
                with suppress(OSError):
                    self._file.truncate(self._begins[-1])
                raise
            self._begins.append(self._begins[-1] + len(line))
            del self._pending[0]

    def truncate(self, lines: int) -> None:
        """Forget the lines after so many.

        Raises:
            SharedDirectoryError: where the file cannot be changed.
        """
        if lines < len(self._begins) - 1:
            with self._writing():
                self._file.truncate(self._begins[lines])
            del self._begins[lines + 1 :]

    def __len__(self) -> int:
        """How many lines there are, those that wait to be written included."""
        return len(self._begins) - 1 + len(self._pending)

    def close(self) -> None:
        """Write what is left and close the file; after that, other hosts see all of it."""
        if not self._file.closed:
            with self._file:
                self.flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _writing(self) -> AbstractContextManager[None]:
        return writing(self._path.parent, self._path.name)


def _begins(content: bytes) -> list[int]:
    return [0, *(end.end() for end in re.finditer(b"\n", content))]


def read_record(path: Path) -> list[tuple[float, RecordLine]]:
    """Read a record as (seconds, fact) in the order written; a torn last line is left out.

    Raises:
        FileMissing: where there is no such file.
        FileCorrupt: names the first line that is not a fact.
    """
    try:
        content = path.read_bytes()
    except OSError:
        raise FileMissing(str(path)) from None
    whole = content[: content.rfind(b"\n") + 1]
    return parse_lines(whole.decode("utf-8", errors="replace").split("\n")[:-1], source=str(path))


def parse_lines(lines: Iterable[str], source: str = "record") -> list[tuple[float, RecordLine]]:
    """Parse whole lines of a record; kinds that this version does not know are left out.

    Raises:
        FileCorrupt: names the first line that is not a fact, counted from 1.
    """
    facts = []
    for number, line in enumerate(lines, start=1):
        try:
            fields = json.loads(line)
            at_seconds, fact = float(fields["at"]), from_fields(fields)
        except (ValueError, TypeError, KeyError, RecursionError):
            raise FileCorrupt(source, f"line {number} is not a fact of an experiment") from None
        if fact is not None:
            facts.append((at_seconds, fact))
    return facts
