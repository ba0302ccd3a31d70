"""The standard streams of the process: made fit for whatever a command prints, and let go of.

A stream that the caller has closed takes nothing, but still holds its number, so that no other file
gets it. What an encoding cannot express is written as what looks like it, or as its number.
"""

from __future__ import annotations

import codecs
import io
import os
import sys

_FALLBACK = "downpour"
_SIMILAR = ("-", "-", "-", "...", "x", "<=", ">=", "->", "u", "+-", '"', '"')
_LOOKS_LIKE = dict(zip("·–−…×≤≥→µ±“”", _SIMILAR, strict=True))


def prepare() -> None:
    """Open what is closed, and let no character be one that cannot be printed."""
    codecs.register_error(_FALLBACK, _similar)
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors=_FALLBACK)


def abandon_broken() -> None:
    """Point what can no longer be written at nothing, or the interpreter complains as it ends."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _similar(error: UnicodeError) -> tuple[str | bytes, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    beyond = error.object[error.start : error.end]
    codec = "unicode_escape"
    told = [_LOOKS_LIKE.get(one) or one.encode(codec).decode("ascii") for one in beyond]
    return "".join(told), error.end
