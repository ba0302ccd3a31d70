"""The log that a process keeps in the shared directory, bounded in size.

The process's own streams and log stay as they are. So a launcher's file also holds the lines that a
process prints before it opens the directory, or as it crashes.
"""

import logging
import os
import re
import secrets
import socket
import sys
import time
import traceback
from collections import deque
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from threading import Event, RLock, Thread
from typing import Any, TextIO

from downpour.base import VERSION
from downpour.base.errors import DownpourError
from downpour.files.log_places import ENDING, PIECE_BYTES_MAX, Level, LogLine, LogPlace, logs_of
from downpour.files.store import SharedDirectory

QUEUE_BYTES_MAX = 128 * 1024
"""The most that a process may log between two writes of the thread; it limits a loop that logs."""
PIECES_KEPT = 4
CLOSE_SECONDS = 2.0
_NAME_CHARACTERS = 60


class LogWriter:
    """Writes the log of one process until `close`, and keeps its last `PIECES_KEPT` pieces.

    Its thread takes lines from a bounded queue. If the folder is slow, full or gone, the queue
    fills up and takes no more lines. The pieces' names begin with the owner; a random part makes
    them unique to this process.
    """

    def __init__(self, place: LogPlace, owner: str) -> None:
        self._place = place
        # The owner's name may have any characters.
        plain = re.sub(r"[^A-Za-z0-9._-]+", "_", owner)[:_NAME_CHARACTERS].strip(".") or "process"
        self._stem = f"{plain}-{secrets.token_hex(4)}"
        self._lines = deque[bytes]()
        self._queued_bytes = 0
        # Reentrant: a signal handler may log while its thread holds the lock.
        self._lock = RLock()
        self._number = 0
        self._size_bytes = 0
        self._pending = b""
        self._is_cut = False
        self._closing = Event()
        self._thread = Thread(target=self._run, name="log", daemon=True)

    def start(self) -> None:
        """Begin to write."""
        self._thread.start()

    def put(self, line: bytes) -> bool:
        """Take a line and return at once; return false if the queue is full."""
        with self._lock:
            has_room = self._queued_bytes + len(line) <= QUEUE_BYTES_MAX
            if has_room:
                self._lines.append(line)
                self._queued_bytes += len(line)
        return has_room

    def close(self) -> None:
        """Write the rest, for at most two seconds."""
        self._closing.set()
        if self._thread.is_alive():
            self._thread.join(CLOSE_SECONDS)

    def _run(self) -> None:
        while not self._closing.wait(self._place.interval_seconds):
            self.write()
        self.write()

    def write(self) -> None:
        """Write the queue; bytes that the place does not take stay for the next time."""
        # We suppress all errors: a log must end no thread, and cannot report its own failure.
        with suppress(Exception):
            self._write_out()
            with self._lock:
                self._pending += b"".join(self._lines)
                self._lines.clear()
                self._queued_bytes = 0
            self._write_out()

    def _write_out(self) -> None:
        while self._pending:
            self._begin_piece()
            written = self._place.append(self._name(self._number), self._pending)
            self._pending = self._pending[written:]
            self._size_bytes += written
            self._is_cut = bool(self._pending)
            if written == 0:
                return

    def _begin_piece(self) -> None:
        """Begin a new piece if the current one is full, and remove the oldest."""
        # If a full disk has cut off a line, its rest belongs behind its beginning.
        if self._size_bytes + len(self._pending) <= PIECE_BYTES_MAX or self._is_cut:
            return
        self._number += 1
        self._size_bytes = 0
        if self._number >= PIECES_KEPT:
            self._place.remove(self._name(self._number - PIECES_KEPT))

    def _name(self, number: int) -> str:
        return f"{self._stem}-{number:06d}{ENDING}"


PACKAGE = "downpour"
_HIDDEN = "***"
_PASSWORD = re.compile(r"(?<=://)([^\s/@:]*):[^\s/@]+@")
_TRACES = logging.Formatter()


class ProcessLog(logging.Handler):
    """Writes each record, and each line given to `say`, without making the caller wait.

    Args:
        name: the process's name in the log, as `worker-1`.
        secrets: texts that no line may contain.
        put: takes a line of the log, or returns false; see `LogWriter`.
        clock: returns the time in seconds since 1970.
    """

    def __init__(
        self,
        name: str,
        secrets: Collection[str],
        put: Callable[[bytes], bool],
        clock: Callable[[], float] = time.time,
    ) -> None:
        super().__init__()
        self._host = socket.gethostname()
        self._name = name
        self._secrets = sorted(secrets, key=len, reverse=True)
        self._put = put
        self._clock = clock
        self._dropped = 0
        self._counting = RLock()

    def emit(self, record: logging.LogRecord) -> None:
        """Write a record, with its traceback if it has one."""
        with suppress(Exception):  # an argument that cannot be formatted: logging reports it itself
            trace = _TRACES.formatException(record.exc_info) if record.exc_info else ""
            self._write(_level(record.levelno), record.name, record.getMessage(), trace)

    def say(self, source: str, text: str) -> None:
        """Write a line that is not a log record."""
        self._write("info", source, text, "")

    def fail(self, error: BaseException) -> None:
        """Write the error that ends the process; a user's mistake needs no traceback."""
        known = isinstance(error, DownpourError)
        text = f"ends: {error}" if known else f"ends: {type(error).__name__}: {error}"
        trace = "" if known else "".join(traceback.format_exception(error)).rstrip()
        self._write("error", PACKAGE, text, trace)

    def _line(self, level: Level, source: str, text: str, trace: str = "") -> bytes:
        return LogLine(
            at=round(self._clock(), 3),
            host=self._host,
            name=self._name,
            pid=os.getpid(),
            level=level,
            source=source,
            text=self._without_secrets(text),
            trace=self._without_secrets(trace),
        ).to_bytes()

    def _write(self, level: Level, source: str, text: str, trace: str) -> None:
        line = self._line(level, source, text, trace)
        with self._counting:
            if self._dropped:
                lost = (
                    f"{self._dropped} lines are missing, because the log did not accept them "
                    "in time"
                )
                line = self._line("warning", PACKAGE, lost) + line
            self._dropped = 0 if self._put(line) else self._dropped + 1

    def _without_secrets(self, text: str) -> str:
        for secret in self._secrets:
            text = text.replace(secret, _HIDDEN)
        return _PASSWORD.sub(rf"\1:{_HIDDEN}@", text) if "://" in text else text


class PrintedLines:
    """Replaces a standard stream: passes text to it, and whole lines to `say` as well.

    A progress bar overwrites its line, so only its last state becomes a line.
    """

    _BUFFERED_MAX = 4_000

    def __init__(self, stream: TextIO, say: Callable[[str], None]) -> None:
        self._stream = stream
        self._say = say
        self._begun = ""

    def write(self, text: str) -> int:
        """Write text."""
        written = len(text)
        with suppress(BrokenPipeError):  # a process outlives the reader of its output
            written = self._stream.write(text)
        self._begun += text
        if "\n" in text or len(self._begun) > self._BUFFERED_MAX:
            with suppress(Exception):  # print the text even if the log fails
                self._tell_lines()
        return written

    def flush(self) -> None:
        """Pass on what the stream holds back."""
        with suppress(BrokenPipeError):
            self._stream.flush()

    def _tell_lines(self) -> None:
        """Pass on whole lines, and a line that is too long to wait for its end."""
        *lines, begun = self._begun.split("\n")
        self._begun = begun.rpartition("\r")[2] if len(begun) > self._BUFFERED_MAX else begun
        if len(self._begun) > self._BUFFERED_MAX:
            lines.append(self._begun)
            self._begun = ""
        for line in lines:
            last = line.rstrip("\r").rpartition("\r")[2]
            if last.strip():
                self._say(last)

    def writelines(self, lines: Collection[str]) -> None:
        """Write several texts."""
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        """Return any other attribute of the stream."""
        return getattr(self._stream, name)


@contextmanager
def kept_log(
    shared: SharedDirectory, name: str, secrets: Collection[str] = (), *, owns_process: bool = True
) -> Iterator[None]:
    """Keep this process's log, without the secrets, in the shared directory, inside the block.

    `owns_process` says whether everything that this process logs and prints belongs there, or only
    what this package logs.
    """
    with ExitStack() as ending:
        owner = f"{socket.gethostname()}-{name}-{os.getpid()}"
        writer = LogWriter(logs_of(shared), owner)
        handler = ProcessLog(name, secrets, writer.put)
        writer.start()
        ending.callback(writer.close)
        logger = logging.getLogger("" if owns_process else PACKAGE)
        if not logger.hasHandlers() and logging.lastResort is not None:
            # Our own handler would silence it, but a program without logging should show warnings.
            logger.addHandler(logging.lastResort)
            ending.callback(logger.removeHandler, logging.lastResort)
        logger.addHandler(handler)
        ending.callback(logger.removeHandler, handler)
        if owns_process:
            ending.enter_context(_printed(handler))
        handler.say(PACKAGE, f"begins, with Downpour {VERSION} as process {os.getpid()}")
        try:
            yield
        except Exception as error:
            handler.fail(error)
            raise
        except BaseException as error:  # a signal, or Ctrl-C
            handler.say(PACKAGE, f"ends: {type(error).__name__}")
            raise
        handler.say(PACKAGE, "ends")


@contextmanager
def _printed(handler: ProcessLog) -> Iterator[None]:
    """Write output to the log as well."""
    before = {name: getattr(sys, name) for name in ("stdout", "stderr")}
    ours = {
        name: PrintedLines(stream, partial(handler.say, name)) for name, stream in before.items()
    }
    for name, stream in ours.items():
        setattr(sys, name, stream)
    try:
        yield
    finally:
        for name, stream in ours.items():
            if getattr(sys, name) is stream:  # otherwise the user's code has replaced it
                setattr(sys, name, before[name])


def _level(number: int) -> Level:
    if number >= logging.ERROR:
        return "error"
    if number >= logging.WARNING:
        return "warning"
    return "info" if number >= logging.INFO else "debug"
