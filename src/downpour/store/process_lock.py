"""A file that a process holds while it lives: by that, others know that its work is not abandoned.

The lock ends with its holder, however that ends. The file may stay; that somebody can lock it
proves that the holder is gone.
"""

from __future__ import annotations

from pathlib import Path

from filelock import BaseFileLock, FileLock, Timeout

from downpour.errors import SharedDirectoryError
from downpour.store.os_errors import explain

RUN_LOCK_NAME = "run.lock"
"""In the folder of an experiment, where the run that it belongs to holds it."""

_LOOK_SECONDS = 2.0
"""Whoever only looks holds it, too, but for a moment."""


def lock_file(path: Path) -> BaseFileLock:
    """Hold a file, made where it is missing, until this process ends or releases it.

    Raises:
        SharedDirectoryError: it cannot be locked.
    """
    lock = FileLock(path, thread_local=False)
    try:
        lock.acquire(timeout=_LOOK_SECONDS)
    except Timeout:
        raise SharedDirectoryError(path, "is held by another process") from None
    except OSError as error:
        raise SharedDirectoryError(path, f"cannot be locked ({explain(error)})") from error
    return lock


def is_abandoned(path: Path) -> bool:
    """Whether a file lies there that was held, and its holder is provably gone."""
    if not path.exists():
        return False
    lock = FileLock(path, thread_local=False)
    try:
        lock.acquire(blocking=False)
    except (Timeout, OSError):
        return False
    lock.release()
    return True
