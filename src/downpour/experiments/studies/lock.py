"""The lock of a study's folder: one process at a time runs the study, and others see which.

When its holder ends, even if someone kills it, the operating system releases the lock. A file next
to it has the holder's process ID.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from filelock import Timeout

from downpour.base.errors import SpecError
from downpour.files.store.os_errors import explain
from downpour.host.folder_lock import FolderLock

_LOCK = "run.lock"
_PID = "run.pid"
_LOOK_SECONDS = 0.2
"""How long to wait for the lock, which `holder` also takes for a moment, only to look."""
LOG_NAME = "log.txt"
LOCK_NAMES = (_LOCK, _PID, LOG_NAME)
"""Files that are not results: a folder that holds only these counts as empty."""


@contextlib.contextmanager
def held(folder: Path) -> Iterator[None]:
    """Hold the lock of a study's folder, which must exist.

    Raises:
        SpecError: another process holds it.
    """
    lock = FolderLock(folder / _LOCK)
    try:
        lock.acquire(timeout=_LOOK_SECONDS, poll_interval=_LOOK_SECONDS / 10)
        (folder / _PID).write_text(str(os.getpid()))  # the lock itself does not name its holder
    except Timeout:
        raise SpecError("folder", str(folder), f"{_pid(folder)} is already running it") from None
    except OSError as error:
        lock.release()
        raise SpecError("folder", str(folder), explain(error)) from None
    try:
        yield
    finally:
        (folder / _PID).unlink(missing_ok=True)
        lock.release()


def holder(folder: Path) -> str | None:
    """Return the process that holds a study's lock, in words; None if none does."""
    if not (folder / _LOCK).exists():
        return None
    lock = FolderLock(folder / _LOCK)
    try:
        lock.acquire(blocking=False)
    except Timeout:
        return _pid(folder)
    except OSError:  # another user's folder, which this process can only read
        return _pid(folder) if (folder / _PID).exists() else None
    lock.release()
    return None


def _pid(folder: Path) -> str:
    try:
        return f"process {int((folder / _PID).read_text())}"
    except (OSError, ValueError):
        return "another process"
