"""Prepares the standard streams and the process's log for any text, and closes them quietly.

If the caller has closed a stream, we give its descriptor to the null device, so that no file of a
command can get it. We write a similar character, or a number, for each character that the encoding
lacks. A command without a log shows warnings through logging's handler of last resort. We make that
handler write each warning in one line, because warnings may quote text from other machines.
"""

from __future__ import annotations

import codecs
import errno
import io
import logging
import os
import sys
from typing import Any

from downpour.host.text import LogFormatter

_FALLBACK = "downpour"
_SIMILAR = ("-", "-", "-", "...", "x", "<=", ">=", "->", "u", "+-", '"', '"')
_LOOKS_LIKE = dict(zip("·–−…×≤≥→µ±“”", _SIMILAR, strict=True))


def prepare() -> None:
    """Replace closed streams, and make every character printable, in logs as well."""
    codecs.register_error(_FALLBACK, _similar)
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors=_FALLBACK)
    if logging.lastResort is not None:
        logging.lastResort.setFormatter(LogFormatter())


def outlive_readers() -> None:
    """Let this process, a server, go on if the reader of its output goes away."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if isinstance(getattr(getattr(stream, "buffer", None), "raw", None), io.FileIO):
            stream.flush()
            lasting = io.BufferedWriter(_Lasting(stream.fileno(), "w", closefd=False))
            text = io.TextIOWrapper(
                lasting, encoding=stream.encoding, errors=stream.errors, line_buffering=True
            )
            setattr(sys, name, text)


class _Lasting(io.FileIO):
    """A stream that writes to the null device once its reader, or its terminal, is gone."""

    def write(self, data: Any) -> int:
        """Write bytes."""
        try:
            return super().write(data)
        except OSError as error:
            if error.errno not in {errno.EPIPE, errno.EIO}:
                raise
            os.dup2(os.open(os.devnull, os.O_WRONLY), self.fileno())
            return len(data)


def abandon_broken() -> None:
    """Redirect streams that can no longer be written to the null device.

    Otherwise the interpreter prints an error when it flushes them at its end.
    """
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            # Replace the descriptor, because the interpreter flushes its buffers once more when it
            # ends.
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _similar(error: UnicodeError) -> tuple[str | bytes, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    beyond = error.object[error.start : error.end]
    codec = "unicode_escape"
    similar = [_LOOKS_LIKE.get(one) or one.encode(codec).decode("ascii") for one in beyond]
    return "".join(similar), error.end
