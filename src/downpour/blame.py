"""Describes an error in a user's code in one line, with its place.

The whole traceback belongs into a log. The line for the user is the last line of the traceback,
with the line of the user's own file.
"""

from __future__ import annotations

import sys
import traceback

from downpour.errors import DownpourError

_LETTERS_MAX = 400
USERS_ERRORS = Exception, SystemExit
"""What a user's code may raise that is told. A sys.exit() in it would otherwise end, unseen, the
thread of the manager's or worker's that it is called in, and its experiment would wait for ever."""

_NOT_THE_USERS = sys.stdlib_module_names | {"downpour", "torch", "numpy"}


def describe_error(error: BaseException) -> str:
    """Return an error in one line: "ValueError: 3 channels are needed (net.py:17 in forward)".

    A `DownpourError` is complete by itself. The place is the innermost one outside of Downpour,
    torch, numpy and Python's own library, if there is one.
    """
    message = " ".join(str(error).split())
    if isinstance(error, DownpourError):
        return message
    if len(message) > _LETTERS_MAX:
        message = f"{message[:_LETTERS_MAX]}…"
    line = f"{type(error).__name__}: {message}" if message else type(error).__name__
    place = _place(error)
    return f"{line} ({place})" if place else line


def _place(error: BaseException) -> str:
    """Return "file:line in function" of the innermost frame of the user's code; may be empty."""
    place = ""
    for frame, line in traceback.walk_tb(error.__traceback__):
        package = str(frame.f_globals.get("__name__", "")).partition(".")[0]
        if package not in _NOT_THE_USERS:
            code = frame.f_code
            place = f"{code.co_filename.rpartition('/')[2]}:{line} in {code.co_name}"
    return place
