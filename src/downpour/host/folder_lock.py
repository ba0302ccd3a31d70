"""A file lock that leaves its folder alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Self

from filelock import AcquireReturnProxy, FileLock


class FolderLock(FileLock):
    """A lock on a file in a folder that exists.

    `FileLock` makes a missing folder with all its parents. A missing folder is often a mount that
    is away: what a process wrote below the mount point, others would never find.
    """

    def acquire(self, *args: Any, **options: Any) -> AcquireReturnProxy[Self]:
        """Take the lock; see `FileLock.acquire`.

        Raises:
            FileNotFoundError: there is no such folder.
        """
        Path(self.lock_file).parent.stat()
        return super().acquire(*args, **options)
