"""Describes an error in a user's code in one line, with its place; finds a thing's definition.

The whole traceback belongs into a log. The line for the user is the last line of the traceback,
with the line of the user's own file.
"""

import inspect
import os
import re
import signal
import sys
import sysconfig
import threading
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

from downpour.base.errors import DownpourError, SpecError, one_line

_LACKING = re.compile(
    r"can't allocate memory|not enough memory|out[ _]of[ _]memory|out_of_\w*memory"
    r"|alloc(ation)?_failed|invalid buffer size",
    re.IGNORECASE,
)
"""Messages of torch on the CPU, and of CUDA with its libraries, Metal and SYCL."""

_LETTERS_MAX = 400

_NOT_THE_USERS = sys.stdlib_module_names | {"downpour", "torch", "numpy"}


def users_errors() -> tuple[type[BaseException], ...]:
    """Return the exceptions of a user's code that Downpour reports, for an `except` clause.

    A sys.exit() in the code would otherwise end, unseen, the manager's or worker's thread that
    calls it, and its experiment would wait forever. So would a KeyboardInterrupt that the code
    raises itself. Only where Ctrl-C raises one does it come from the user at the keyboard.
    """
    in_main = threading.current_thread() is threading.main_thread()
    if in_main and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        return Exception, SystemExit
    return Exception, SystemExit, KeyboardInterrupt


def describe_error(error: BaseException, called: Any = None) -> str:
    """Return an error in one line: "ValueError: 3 channels are needed (net.py:17 in forward)".

    A `DownpourError` is complete on its own. The place is the innermost one outside of Downpour,
    torch, numpy and Python's own library. If no such place exists, it is that of the user's
    function that was `called`, if any.
    """
    message = one_line(" ".join(str(error).split()))
    if isinstance(error, DownpourError):
        return message
    if len(message) > _LETTERS_MAX:
        message = f"{message[:_LETTERS_MAX]}…"
    line = f"{type(error).__name__}: {message}" if message else type(error).__name__
    for note in getattr(error, "__notes__", ()):
        line += f"; {' '.join(str(note).split()):.200}"
    place = _place(error)
    return f"{line} ({place})" if place else with_place(line, called)


def message_of(error: BaseException) -> str:
    """Return an error's message in one line; its type if it has none."""
    return " ".join(str(error).split()) or type(error).__name__


def is_of_users_code(error: BaseException) -> bool:
    """Whether an error in the user's code caused our error, so that a log has its traceback.

    Our one line shows the last call in the user's code, not the calls that led to it.
    """
    return isinstance(error, SpecError) and error.__cause__ is not None


def with_place(said: str, defined: Any) -> str:
    """Return a remark on a user's class or function, with "(net.py:9 in loss)" where known."""
    if str(getattr(defined, "__module__", "")).partition(".")[0] in _NOT_THE_USERS:
        return said
    try:
        written = inspect.unwrap(defined)
        file, line = inspect.getsourcefile(written), inspect.getsourcelines(written)[1]
    except (OSError, TypeError, ValueError):
        return said
    return f"{said} ({(file or '').rpartition('/')[2]}:{line} in {written.__name__})"


def place_of(file: str, line: int | str, name: str) -> str:
    """Return "file:line in function" if a file is the user's; empty if it is a library's."""
    libraries = (sysconfig.get_paths()[kind] for kind in ("stdlib", "purelib", "platlib"))
    own = str(Path(__file__).parents[1])
    if file.startswith("<") or any(file.startswith(folder) for folder in (*libraries, own)):
        return ""
    return f"{file.rpartition('/')[2]}:{line} in {name}"


def ending_told(tell: Callable[[str], object]) -> Callable[[int], NoReturn]:
    """Return a substitute for `os._exit` that first tells which line of the user's calls it."""
    end = os._exit

    def told(status: int) -> NoReturn:
        place = _innermost(traceback.extract_stack()[:-1]) or "unknown"
        tell(f"ends its process with os._exit({status}) ({place})")
        end(status or 1)

    return told


def place_of_thread(thread: int) -> str:
    """Return "file:line in function" of a thread's innermost call in the user's code, or at all."""
    frames = traceback.extract_stack(sys._current_frames().get(thread))  # noqa: SLF001 - the only way
    called = frames[-1]
    return _innermost(frames) or f"{Path(called.filename).name}:{called.lineno} in {called.name}"


def _innermost(frames: Sequence[traceback.FrameSummary]) -> str:
    places = (place_of(frame.filename, frame.lineno or 0, frame.name) for frame in reversed(frames))
    return next(filter(None, places), "")


def _place(error: BaseException) -> str:
    """Return "file:line in function" of the innermost frame of the user's code; may be empty."""
    place = ""
    for frame, line in traceback.walk_tb(error.__traceback__):
        package = str(frame.f_globals.get("__name__", "")).partition(".")[0]
        if package not in _NOT_THE_USERS:
            code = frame.f_code
            place = f"{code.co_filename.rpartition('/')[2]}:{line} in {code.co_name}"
    return place


def is_lack_of_memory(error: BaseException) -> bool:
    """Whether torch found too little memory, on the CPU or on an accelerator."""
    return isinstance(error, RuntimeError) and (
        type(error).__name__ == "OutOfMemoryError" or bool(_LACKING.search(str(error)))
    )
