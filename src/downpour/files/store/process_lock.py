"""A lock file that shows that a process is alive, so that its work is not taken for abandoned.

The lock ends with its process, however that ends. The file may stay: if another process can lock
it, its holder is dead.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from filelock import BaseFileLock, FileLock, Timeout

from downpour.base.errors import SharedDirectoryError
from downpour.files.store.os_errors import explain

RUN_LOCK_NAME = "run.lock"
"""In the folder of an experiment; held by the run that the experiment belongs to."""

_LOOK_SECONDS = 2.0
"""How long to try: `is_abandoned` in another process holds the lock, too, for a moment."""


def lock_file(path: Path) -> BaseFileLock:
    """Lock a file, which is created if missing, until this process ends or releases it.

    Raises:
        SharedDirectoryError: it cannot be locked.
    """
    # Not by thread: a run's lock is taken by a server's thread and released by that of the work.
    lock = FileLock(path, thread_local=False)
    try:
        lock.acquire(timeout=_LOOK_SECONDS)
    except Timeout:
        raise SharedDirectoryError(path, "is held by another process") from None
    except OSError as error:
        raise SharedDirectoryError(path, f"cannot be locked ({explain(error)})") from error
    return lock


def give_back(lock: BaseFileLock) -> None:
    """Release a lock; where its directory was away meanwhile, it ends with this process."""
    # A network file system that took the lock from a silent holder refuses its file ever after.
    with suppress(OSError):
        lock.release()


def is_abandoned(path: Path) -> bool:
    """Whether the lock file exists and its holder is provably dead."""
    # `FileLock` would create it.
    if not path.exists():
        return False
    lock = FileLock(path, thread_local=False)
    try:
        lock.acquire(blocking=False)
    except (Timeout, OSError):
        return False
    lock.release()
    return True
