"""The file by which workers prove that they see the same folder as their manager.

The manager holds a lock beside it. The files of managers that were killed are removed by the next
manager that starts, whether it serves a cluster or a run.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from filelock import BaseFileLock

from downpour.store.directory import DirectoryStore, names_in
from downpour.store.process_lock import is_abandoned, lock_file

_LOCK = ".lock"


@dataclass(frozen=True, slots=True)
class Presence:
    """A manager's presence file, and the lock beside it."""

    name: str
    lock: BaseFileLock
    folder: Path

    def withdraw(self) -> None:
        """Remove both; best effort, because the folder may be gone."""
        _remove(self.folder, (self.name, self.name + _LOCK))
        self.lock.release()


def announce(files: DirectoryStore, content: str) -> Presence:
    """Publish a presence file, and remove those of dead managers.

    Raises:
        SharedDirectoryError: the folder cannot be used.
        StoreError: it cannot be written.
    """
    _remove_abandoned(files.path)
    name = f"manager-{uuid.uuid4().hex[:12]}"
    # Before the file: a presence file without a held lock would be removed as abandoned.
    lock = lock_file(files.path / (name + _LOCK))
    files.put_new(name, [content.encode()])
    return Presence(name, lock, files.path)


def _remove_abandoned(folder: Path) -> None:
    for lock in (name for name in names_in(folder) if name.endswith(_LOCK)):
        if is_abandoned(folder / lock):
            _remove(folder, (lock.removesuffix(_LOCK), lock))


def _remove(folder: Path, names: Iterable[str]) -> None:
    # The lock is the last of them: it is by the locks that a manager finds what to remove.
    for name in names:
        with suppress(OSError):
            (folder / name).unlink(missing_ok=True)
