"""The file with which workers prove that they see the same folder as their manager.

The manager holds a lock beside it. The next manager that starts, for a cluster or a run, removes
the files of killed managers.
"""

from __future__ import annotations

import uuid
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from filelock import BaseFileLock

from downpour.base.errors import StoreError
from downpour.files.store.base import Store
from downpour.files.store.directory import names_in
from downpour.files.store.process_lock import give_back, is_abandoned, lock_file

_LOCK = ".lock"


@dataclass(frozen=True, slots=True)
class Presence:
    """A manager's presence file, and the lock of its name in a folder."""

    name: str
    lock: BaseFileLock
    folder: Path
    files: Store

    def withdraw(self) -> None:
        """Remove both; best effort, because the folder may be gone."""
        _remove(self.folder, self.files, self.name + _LOCK)
        give_back(self.lock)


def announce(folder: Path, files: Store, content: str) -> Presence:
    """Publish a presence file, and remove those of dead managers; `folder` has the locks.

    Raises:
        SharedDirectoryError: the folder cannot be used.
        StoreError: it cannot be written.
    """
    _remove_abandoned(folder, files)
    name = f"manager-{uuid.uuid4().hex[:12]}"
    # We lock before we publish: another manager would remove a presence file without a held lock.
    lock = lock_file(folder / (name + _LOCK))
    files.put_new(name, [content.encode()])
    return Presence(name, lock, folder, files)


def _remove_abandoned(folder: Path, files: Store) -> None:
    for lock in (name for name in names_in(folder) if name.endswith(_LOCK)):
        if is_abandoned(folder / lock):
            _remove(folder, files, lock)


def _remove(folder: Path, files: Store, lock: str) -> None:
    # We remove the lock last, because managers find abandoned files by their locks.
    with suppress(StoreError):
        files.delete(lock.removesuffix(_LOCK))
        with suppress(OSError):
            (folder / lock).unlink(missing_ok=True)
