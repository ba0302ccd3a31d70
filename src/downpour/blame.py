"""What went wrong in code that is neither Downpour's nor torch's, in one line with its place.

The whole traceback belongs into a log. What travels to the user says what the last line of a
traceback says, and adds the line of their own file.
"""

from __future__ import annotations

import sys
import traceback

from downpour.errors import DownpourError

_LETTERS_MAX = 400
_NOT_THE_USERS = sys.stdlib_module_names | {"downpour", "torch", "numpy"}


def describe_error(error: BaseException) -> str:
    """Return an error in one line: "ValueError: 3 channels are needed (net.py:17 in forward)".

    An error of Downpour's own says it all itself. The place is the innermost one outside of
    Downpour, torch, numpy and Python's own library; where there is none, none is named.
    """
    said = " ".join(str(error).split())
    if isinstance(error, DownpourError):
        return said
    if len(said) > _LETTERS_MAX:
        said = f"{said[:_LETTERS_MAX]}…"
    line = f"{type(error).__name__}: {said}" if said else type(error).__name__
    place = _place(error)
    return f"{line} ({place})" if place else line


def _place(error: BaseException) -> str:
    """Return "file:line in function" of the innermost frame of the user's code; may be empty."""
    found = ""
    for frame, line in traceback.walk_tb(error.__traceback__):
        package = str(frame.f_globals.get("__name__", "")).partition(".")[0]
        if package not in _NOT_THE_USERS:
            code = frame.f_code
            found = f"{code.co_filename.rpartition('/')[2]}:{line} in {code.co_name}"
    return found
