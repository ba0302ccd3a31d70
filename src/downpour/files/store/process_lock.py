"""A lock file shows that a process is alive, so that others don't take its work for abandoned.

The lock ends with its process, no matter how the process ends. The file may stay: if another
process can lock it, its holder is dead.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from filelock import BaseFileLock, Timeout

from downpour.base.errors import SharedDirectoryError
from downpour.files.store.os_errors import explain
from downpour.host.folder_lock import FolderLock

RUN_LOCK_NAME = "run.lock"
"""The lock in an experiment's folder, which the experiment's run holds."""

_LOOK_SECONDS = 2.0
"""How long to try: `is_abandoned` in another process holds the lock, too, for a moment."""


def lock_file(path: Path) -> BaseFileLock:
    """Lock a file until this process ends or releases it; create a missing file.

    Raises:
        SharedDirectoryError: it cannot be locked.
    """
    # Not per thread: a server's thread takes a run's lock, and the thread of the work releases it.
    lock = FolderLock(path, thread_local=False)
    try:
        lock.acquire(timeout=_LOOK_SECONDS)
    except Timeout:
        raise SharedDirectoryError(path, "is held by another process") from None
    except OSError as error:
        raise SharedDirectoryError(path, f"cannot be locked ({explain(error)})") from error
    return lock


def give_back(lock: BaseFileLock) -> None:
    """Release a lock; if its directory was away meanwhile, the lock ends with this process."""
    # A network file system that took the lock from a silent holder refuses that file from then on.
    with suppress(OSError):
        lock.release()


def is_abandoned(path: Path) -> bool:
    """Whether the lock file exists and its holder is provably dead."""
    # `FolderLock` would create it.
    if not path.exists():
        return False
    lock = FolderLock(path, thread_local=False)
    try:
        lock.acquire(blocking=False)
    except (Timeout, OSError):
        return False
    lock.release()
    return True
