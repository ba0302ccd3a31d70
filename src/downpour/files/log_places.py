"""The places of logs, the form of their lines, and the removal of old ones.

Only a manager that starts makes the folder. If it is missing later, it may be a mount that is away.

A process writes *pieces*, files that grow to a bounded size. Only that process writes them, and it
never reuses a name, so a reader that knows its position in a piece continues there.
"""

from __future__ import annotations

import errno
import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Event, Thread
from typing import Annotated, Literal, Protocol, get_args

from pydantic import Field, TypeAdapter, ValidationError

from downpour.base.errors import (
    FileCorrupt,
    FileMissing,
    SharedDirectoryError,
    SpecError,
    StoreError,
    did_you_mean,
)
from downpour.files.store import SharedDirectory
from downpour.files.store.bucket import Bucket
from downpour.files.store.directory import open_regular
from downpour.files.store.publish import explain
from downpour.files.store.shared_directory import PROCESS_LOGS

FOLDER = PROCESS_LOGS
ENDING = ".jsonl"
PIECE_BYTES_MAX = 256 * 1024
_READ_BYTES_MAX = 4 * PIECE_BYTES_MAX
"""More than any piece has; this bounds a reader's memory for any file in that place."""


@dataclass(frozen=True, slots=True)
class Piece:
    """An existing piece; the time of its last change is in seconds since 1970."""

    name: str
    size_bytes: int
    changed_seconds: float


class LogPlace(Protocol):
    """Keeps pieces of logs; any call may raise SharedDirectoryError, and may take long."""

    @property
    def interval_seconds(self) -> float:
        """How often a process writes its new lines, and a reader looks for them."""

    def append(self, name: str, gained: bytes) -> int:
        """Add bytes to a piece, which may be new; return how many were written."""

    def pieces(self) -> list[Piece]:
        """Return the existing pieces, by name; none if the folder does not exist."""

    def read(self, name: str, begin: int) -> bytes:
        """Return a piece's bytes from `begin` on; empty if the piece is gone."""

    def remove(self, name: str) -> None:
        """Remove a piece, if it exists."""


class FolderLogs:
    """Keeps pieces in a folder; opens a piece only while it grows.

    Over NFS, others see what a process has written once it closes the file.
    """

    interval_seconds = 1.0

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def append(self, name: str, gained: bytes) -> int:
        """Add bytes to a file; a full disk may take only some of them."""
        try:
            flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK
            descriptor = os.open(self._folder / name, flags, 0o666)
            try:
                return os.write(descriptor, gained)
            finally:
                os.close(descriptor)
        except OSError as error:
            raise self._failed(error) from error

    def pieces(self) -> list[Piece]:
        """Return the regular files with the ending of a piece."""
        found = []
        try:
            with os.scandir(self._folder) as entries:
                for entry in entries:
                    # Skip a file that another process removes meanwhile.
                    with suppress(FileNotFoundError):
                        if entry.name.endswith(ENDING) and entry.is_file(follow_symlinks=False):
                            about = entry.stat(follow_symlinks=False)
                            found.append(Piece(entry.name, about.st_size, about.st_mtime))
        except FileNotFoundError:
            return []
        except OSError as error:
            raise self._failed(error) from error
        return sorted(found, key=lambda piece: piece.name)

    def read(self, name: str, begin: int) -> bytes:
        """Read a regular file; a link or a FIFO that took its place counts as gone."""
        try:
            with open(open_regular(self._folder / name), "rb") as file:
                file.seek(begin)
                return file.read(_READ_BYTES_MAX)
        except FileCorrupt:
            return b""
        except OSError as error:
            if error.errno in {errno.ENOENT, errno.ESTALE}:
                return b""
            raise self._failed(error) from error

    def remove(self, name: str) -> None:
        """Remove a file; another user's file stays."""
        with suppress(OSError):
            (self._folder / name).unlink()

    def _failed(self, error: OSError) -> SharedDirectoryError:
        return SharedDirectoryError(self._folder, explain(error))


class _BucketLogs:
    """Keeps pieces as objects; puts the whole object each time that a piece grows."""

    interval_seconds = 5.0

    def __init__(self, bucket: Bucket) -> None:
        self._bucket = bucket
        self._growing = ("", b"")

    def append(self, name: str, gained: bytes) -> int:
        # The bucket takes all bytes, or none.
        before = self._growing[1] if self._growing[0] == name else b""
        self._bucket.put(f"{FOLDER}/{name}", before + gained)
        self._growing = name, before + gained
        return len(gained)

    def pieces(self) -> list[Piece]:
        return [
            Piece(found.key.rpartition("/")[2], found.size_bytes, found.changed_seconds)
            for found in self._bucket.found(FOLDER)
            if found.key.endswith(ENDING)
        ]

    def read(self, name: str, begin: int) -> bytes:
        try:
            return self._bucket.get(f"{FOLDER}/{name}")[begin:]
        except FileMissing:
            return b""

    def remove(self, name: str) -> None:
        self._bucket.remove(f"{FOLDER}/{name}")


def logs_of(shared: SharedDirectory) -> LogPlace:
    """Return where the processes of a shared directory keep their logs."""
    return _BucketLogs(shared.bucket) if shared.bucket else FolderLogs(shared.process_logs)


Level = Literal["debug", "info", "warning", "error"]
LEVELS: tuple[Level, ...] = get_args(Level)
TEXT_CHARACTERS_MAX = 4_000
TRACE_CHARACTERS_MAX = 24_000
_LAST_SECOND = 253_402_300_799  # of the year 9999, the last one that `datetime` knows
_CUT = "…"


def level_of(given: str) -> Level:
    """Return the level of this name, as users write it."""
    for known in LEVELS:
        if known == given:
            return known
    accepted = f"must be one of {', '.join(LEVELS)}{did_you_mean(given, LEVELS)}"
    raise SpecError("level", given, accepted)


@dataclass(frozen=True, slots=True, kw_only=True)
class LogLine:
    """A line that a process logged or printed, with the process and its host.

    `at` is in seconds since 1970, by the host's clock. `source` is the logger's name, or `stdout`
    or `stderr` for text that was printed. `trace` is a traceback, in lines. All text is unchanged,
    so pass it through `one_line` before a terminal shows it.
    """

    at: Annotated[float, Field(ge=0, le=_LAST_SECOND, allow_inf_nan=False)]
    host: str
    name: str
    pid: int
    level: Level
    source: str
    text: str
    trace: str = ""

    def to_bytes(self) -> bytes:
        """Return it as a line of JSON, with the line end; cut long text."""
        # We avoid `asdict`, which takes longer than all the rest of a line.
        values = {name: getattr(self, name) for name in self.__slots__}
        text, trace = self.text, self.trace
        if len(text) > TEXT_CHARACTERS_MAX:
            text = text[: TEXT_CHARACTERS_MAX - 1] + _CUT
        if len(trace) > TRACE_CHARACTERS_MAX:  # its end says what was wrong
            trace = _CUT + trace[1 - TRACE_CHARACTERS_MAX :]
        values["text"] = text.encode(errors="backslashreplace").decode()
        if trace:
            values["trace"] = trace.encode(errors="backslashreplace").decode()
        else:
            del values["trace"]
        return json.dumps(values).encode() + b"\n"

    @classmethod
    def of(cls, line: bytes) -> LogLine | None:
        """Parse a line; None if it is damaged, or comes from another program."""
        try:
            return _ADAPTER.validate_json(line)
        except ValidationError:
            return None


_ADAPTER = TypeAdapter(LogLine)


KEPT_SECONDS = 14 * 24 * 3600.0
KEPT_BYTES = 256 * 1024**2
"""The limit for all processes together: the full logs of some hundred workers."""
_LOOK_SECONDS = 3600.0


def remove_old_logs(place: LogPlace, now_seconds: float) -> None:
    """Remove pieces that have not changed for two weeks, and the oldest beyond `KEPT_BYTES`."""
    left_bytes = KEPT_BYTES
    for piece in sorted(place.pieces(), key=lambda piece: piece.changed_seconds, reverse=True):
        left_bytes -= piece.size_bytes
        if left_bytes < 0 or piece.changed_seconds < now_seconds - KEPT_SECONDS:
            place.remove(piece.name)


@contextmanager
def old_logs_removed(shared: SharedDirectory) -> Iterator[None]:
    """Remove old logs now and every hour inside the block, in a thread that nothing waits for."""
    ending = Event()

    def look() -> None:
        place = logs_of(shared)
        while not ending.is_set():
            with suppress(StoreError):
                remove_old_logs(place, time.time())
            ending.wait(_LOOK_SECONDS)

    Thread(target=look, name="old-logs", daemon=True).start()
    try:
        yield
    finally:
        ending.set()
