"""An experiment's record: all that happened in it, as one JSON line each, in its folder.

Only the manager writes it, and it only appends. Reports, the dashboard and clients read it. It
serves people: nothing is decided from it, and if a crash loses its last line, no result is lost. So
it is flushed line by line but not synced. Other hosts see all of it once it is closed; while an
experiment runs they ask the manager.
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

from downpour.base.errors import FileCorrupt, FileMissing, StoreError
from downpour.files.records.record_lines import RecordLine, from_fields, to_fields
from downpour.files.store.directory import open_regular, read_regular
from downpour.files.store.os_errors import reading, writing

PAGE_LINES_MAX = 1000
PAGE_BYTES_MAX = 4_000_000


class RecordReader:
    """Reads pages of a record; safe to share between threads.

    Args:
        path: the record's file.

    Raises:
        SharedDirectoryError: the file cannot be read.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._begins = self._index(path)

    def _index(self, path: Path) -> list[int]:
        """Return the offset of each line, and of the end of the last one."""
        return _begins(read_regular(path))

    def lines(self, from_line: int) -> list[str]:
        """Return a page of lines, without their ends, beginning at `from_line` (from 0).

        A page ends after 1000 lines or about four megabytes, whichever comes first, so that it
        fits into a message; go on at `from_line + len(page)` until a page is empty.

        Raises:
            SharedDirectoryError: the file cannot be read.
        """
        begins, end = self._begins, len(self._begins) - 1
        if not 0 <= from_line < end:
            return []
        fits = bisect_right(begins, begins[from_line] + PAGE_BYTES_MAX, hi=end + 1) - 1
        # One line at least, however long, because a reader could not go on after an empty page.
        stop = min(max(fits, from_line + 1), from_line + PAGE_LINES_MAX)
        size = begins[stop] - begins[from_line]
        with (
            reading(self._path.parent, self._path.name),
            open(open_regular(self._path), "rb") as file,
        ):
            page = os.pread(file.fileno(), size, begins[from_line])
        # The writer's JSON is ASCII with control characters escaped, so nothing else in it ends a
        # line.
        return page.decode("utf-8").splitlines()


class RecordWriter(RecordReader):
    """Appends lines to a record and reads pages of it; a context manager.

    One thread writes; any thread may read pages meanwhile, and also after it was closed. A record
    that exists is continued, without the torn line that a crash may have left.

    Args:
        path: the record's file; its folder exists.

    Raises:
        SharedDirectoryError: the file cannot be opened.
        FileCorrupt: it is not a regular file.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._pending: list[bytes] = []
        self._is_torn = False

    def _index(self, path: Path) -> list[int]:
        with self._writing():
            # Unbuffered, because a buffer would keep a line that could not be written, and write it
            # a second time together with the next one.
            flags = os.O_RDWR | os.O_CREAT | os.O_APPEND
            self._file = os.fdopen(open_regular(path, flags), "a+b", buffering=0)
            self._file.seek(0)
            begins = _begins(self._file.read())
            self._file.truncate(begins[-1])
        return begins

    def append(self, at_seconds: float, fact: RecordLine) -> None:
        """Take a fact in; `flush` writes it."""
        # `to_fields` writes null for NaN; one that passed it would make a line that is not JSON.
        line = json.dumps({"at": at_seconds, **to_fields(fact)}, allow_nan=False).encode() + b"\n"
        self._pending.append(line)

    def flush(self) -> None:
        """Write what was appended.

        Raises:
            SharedDirectoryError: not all could be written; the record ends with a whole line, and
                calling again writes the rest.
        """
        while self._pending:
            rest = line = self._pending[0]
            try:
                with self._writing():
                    self._mend()
                    while rest:  # a disk that fills up writes a part and refuses the rest
                        rest = rest[self._file.write(rest) :]
            except StoreError:
                self._is_torn = True
                with suppress(OSError):
                    self._mend()
                raise
            # Only now, because threads that read pages meanwhile go by it: they see whole lines
            # alone.
            self._begins.append(self._begins[-1] + len(line))
            del self._pending[0]

    def _mend(self) -> None:
        """Remove what a failed write has left of a line, before another line follows it."""
        if self._is_torn:
            self._file.truncate(self._begins[-1])
            self._is_torn = False

    def truncate(self, lines: int) -> None:
        """Remove the lines after the first `lines`.

        Raises:
            SharedDirectoryError: the file cannot be changed.
        """
        if lines < len(self._begins) - 1:
            with self._writing():
                self._file.truncate(self._begins[lines])
            del self._begins[lines + 1 :]

    def __len__(self) -> int:
        """The number of lines, those that are not flushed yet included."""
        # The journal's entries state this length, and the record is written before they are.
        return len(self._begins) - 1 + len(self._pending)

    def close(self) -> None:
        """Flush and close the file; after that, other hosts see all of it."""
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
        FileMissing: there is no such file.
        FileCorrupt: names the first line that is invalid.
        SharedDirectoryError: it cannot be read now, though it may be there.
    """
    # Only where it is certainly missing: a folder without a record counts as never begun, and is
    # removed by the manager that starts next.
    with reading(path.parent, path.name):
        if not path.exists():
            raise FileMissing(str(path))
    content = read_regular(path)
    whole = content[: content.rfind(b"\n") + 1]
    return parse_lines(whole.decode("utf-8", errors="replace").split("\n")[:-1], source=str(path))


def parse_lines(lines: Iterable[str], source: str = "record") -> list[tuple[float, RecordLine]]:
    """Parse whole lines of a record; kinds that this version does not know are skipped.

    Raises:
        FileCorrupt: names the first line that is invalid, counted from 1.
    """
    facts = []
    for number, line in enumerate(lines, start=1):
        try:
            fields = json.loads(line)
            at_seconds, fact = float(fields["at"]), from_fields(fields)
        # RecursionError is what `json` raises for brackets nested by the thousand.
        except (ValueError, TypeError, KeyError, RecursionError):
            raise FileCorrupt(source, f"line {number} is not a fact of an experiment") from None
        if fact is not None:
            facts.append((at_seconds, fact))
    return facts
