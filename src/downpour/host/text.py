"""Makes text from elsewhere safe to show on a terminal, in a table or in a log.

Names, reasons and decisions come from other processes, from files and from users' code. Code that
shows one to a person passes it through `one_line`; output for programs stays unchanged.
"""

from __future__ import annotations

import logging
import math
import os
from logging.handlers import WatchedFileHandler
from pathlib import Path
from types import TracebackType


def one_line(text: str) -> str:
    r"""Return the text in one line: line breaks as spaces, other control characters as `\x1b`."""
    return text if text.isprintable() else "".join(map(_shown, text))


def shortened(text: str, limit: int = 2000) -> str:
    """Return the text in one line of a limited length."""
    line = one_line(text)
    return line if len(line) <= limit else line[: limit - 1] + "…"


def last_line(text: str) -> str:
    """Return a program's last words: one line, without the program's name."""
    lines = text.strip().splitlines()
    return one_line(lines[-1].strip().removeprefix("downpour: ")) if lines else ""


_UNITS = ("bytes", "kB", "MB", "GB", "TB", "PB")


def size_in_words(count_bytes: int, of_bytes: int = 0) -> str:
    """Return a number of bytes as "1.2 MB", or, as a part of more, as "1.2 of 4 MB"."""
    # Three digits of a little less than a unit are a whole one.
    most_bytes = max(1.0005 * max(count_bytes, of_bytes), 1.0)
    power = min(int(math.log(most_bytes, 1000)), len(_UNITS) - 1)
    whole = f" of {of_bytes / 1000**power:.3g}" if of_bytes > count_bytes else ""
    return f"{count_bytes / 1000**power:.3g}{whole} {_UNITS[power]}"


class LogFormatter(logging.Formatter):
    """Writes each message in one line, and a traceback in separate lines below."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - of the library
        """Format the message; a traceback follows below it."""
        record.message = one_line(record.message)
        return super().formatMessage(record)

    def formatException(  # noqa: N802 - of the library
        self,
        ei: tuple[type[BaseException], BaseException, TracebackType | None]
        | tuple[None, None, None],
    ) -> str:
        """Format a traceback; its last lines may quote text from elsewhere."""
        return "\n".join(map(one_line, super().formatException(ei).split("\n")))


def set_up_log(level: int, line: str, file: Path | None = None) -> None:
    """Set up this process's log, on standard error or in a file, with lines of the given format."""
    if file is not None:
        # Without this, opening a FIFO would wait for a reader; now it fails.
        os.close(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_NONBLOCK, 0o666))
    # A program that rotates logs may move the file; this handler then begins a new one.
    handler = WatchedFileHandler(file) if file is not None else logging.StreamHandler()
    handler.setFormatter(LogFormatter(line))
    logging.basicConfig(level=level, handlers=[handler])


def _shown(character: str) -> str:
    if character.isprintable():
        return character
    return " " if character.isspace() else character.encode("unicode_escape").decode("ascii")
