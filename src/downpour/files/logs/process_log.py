"""Turns a process's log and output into lines of its log in the shared directory.

The streams and the log that a process has anyway stay as they are; all of this comes on top. So a
launcher's own file also holds what a process says before it opens the directory, or as it crashes.
"""

from __future__ import annotations

import logging
import os
import re
import socket
import sys
import time
import traceback
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from threading import RLock
from typing import Any, TextIO

from downpour.base.errors import DownpourError
from downpour.base.version import VERSION
from downpour.files.logs.log_line import Level, LogLine
from downpour.files.logs.log_places import logs_of
from downpour.files.logs.log_writer import LogWriter
from downpour.files.store import SharedDirectory

PACKAGE = "downpour"
_HIDDEN = "***"
_PASSWORD = re.compile(r"(?<=://)([^\s/@:]*):[^\s/@]+@")
_TRACES = logging.Formatter()


class ProcessLog(logging.Handler):
    """Writes each record, and each line that is given to `say`, without making its caller wait.

    Args:
        name: the process's name in the log, as `worker-1`.
        secrets: texts of which no line may hold any.
        put: takes a line of the log, or returns false; see `LogWriter`.
        clock: tells the time in seconds since 1970.
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

    def say(self, source: str, text: str, level: Level = "info") -> None:
        """Write a line that is no record."""
        self._write(level, source, text, "")

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
    """Stands for a standard stream: text goes there, and whole lines to `say` as well.

    Of a progress bar, which overwrites its line, only the last state is a line.
    """

    _BUFFERED_MAX = 4_000

    def __init__(self, stream: TextIO, say: Callable[[str], None]) -> None:
        self._stream = stream
        self._say = say
        self._begun = ""

    def write(self, text: str) -> int:
        """Write text."""
        written = self._stream.write(text)
        self._begun += text
        if "\n" in text or len(self._begun) > self._BUFFERED_MAX:
            with suppress(Exception):  # print the text even if the log fails
                self._tell_lines()
        return written

    def _tell_lines(self) -> None:
        """Tell the lines that are whole, and one that is too long to wait for its end."""
        *lines, begun = self._begun.split("\n")
        self._begun = begun.rpartition("\r")[2] if len(begun) > self._BUFFERED_MAX else begun
        if len(self._begun) > self._BUFFERED_MAX:
            lines.append(self._begun)
            self._begun = ""
        for line in lines:
            self._tell(line)

    def writelines(self, lines: Collection[str]) -> None:
        """Write several texts."""
        for line in lines:
            self.write(line)

    def _tell(self, line: str) -> None:
        last = line.rstrip("\r").rpartition("\r")[2]
        if last.strip():
            self._say(last)

    def __getattr__(self, name: str) -> Any:
        """Return what else the stream has."""
        return getattr(self._stream, name)


@contextmanager
def kept_log(
    shared: SharedDirectory,
    name: str,
    secrets: Collection[str] = (),
    *,
    owns_process: bool = True,
) -> Iterator[None]:
    """Keep this process's log in the shared directory, inside the block.

    Args:
        shared: the directory.
        name: the process's name in the log.
        secrets: texts that must not be in it.
        owns_process: whether all that this process logs and prints belongs there; if not, only what
            this package logs does.
    """
    with ExitStack() as ending:
        owner = f"{socket.gethostname()}-{name}-{os.getpid()}"
        writer = LogWriter(logs_of(shared), owner)
        handler = ProcessLog(name, secrets, writer.put)
        writer.start()
        ending.callback(writer.close)
        logger = logging.getLogger("" if owns_process else PACKAGE)
        if not logger.hasHandlers() and logging.lastResort is not None:
            # Our own handler would silence it, but a program without logging should see warnings.
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
            if getattr(sys, name) is stream:  # else the user's code has put another one there
                setattr(sys, name, before[name])


def _level(number: int) -> Level:
    if number >= logging.ERROR:
        return "error"
    if number >= logging.WARNING:
        return "warning"
    return "info" if number >= logging.INFO else "debug"
