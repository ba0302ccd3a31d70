"""Proof that a process is there and sees the same directory.

A lock ends with its process, no matter how the process ends. The file may stay: if another process
can lock it, its holder is dead. An object store has no locks, so there the leader has a pulse.
"""

from __future__ import annotations

import logging
import secrets
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Event, Thread

from filelock import BaseFileLock, Timeout

from downpour.base.errors import FileMissing, SharedDirectoryError, StoreError
from downpour.files.store.bucket import Bucket
from downpour.files.store.directory import names_in
from downpour.files.store.layout import Store
from downpour.files.store.publish import explain, publish
from downpour.host.paths import FolderLock

log = logging.getLogger(__name__)

FOLDER = "pulses"
BEAT_SECONDS = 2.0
DEAD_SECONDS = 10.0
"""Four beats may get lost, for instance in a slow store, before a successor takes over."""
_LAST = b"ended"


class Pulse:
    """Beats from `start` to `stop`, in a separate thread.

    The leader replaces an object (docs/internals/decisions.md, "An object store needs one
    condition"). A leader that only stood still finds the later term when it looks: `leads` says
    whether no later term has begun, and raises StoreError if it cannot find out.
    """

    def __init__(self, bucket: Bucket, term: int, leads: Callable[[], bool]) -> None:
        self._bucket = bucket
        self._key = f"{FOLDER}/{term:06d}"
        self._leads = leads
        self._ended = Event()
        self._seen_leading = float("-inf")
        self._thread = Thread(target=self._run, name="pulse", daemon=True)

    def start(self) -> None:
        """Begin with a beat."""
        self._beat()
        self._thread.start()

    def stop(self) -> None:
        """Say that the manager has ended, so that a successor need not wait; best effort."""
        self._ended.set()
        self._thread.join()
        try:
            self._bucket.put(self._key, _LAST)
        except StoreError as error:
            log.debug("the last beat failed: %s", error)

    @property
    def is_fresh(self) -> bool:
        """Whether no successor can have begun, because the manager still led moments ago."""
        return time.monotonic() - self._seen_leading < DEAD_SECONDS / 2

    def _run(self) -> None:
        while not self._ended.wait(BEAT_SECONDS):
            try:
                self._beat()
            except StoreError as error:
                log.debug("a beat failed: %s", error)

    def _beat(self) -> None:
        # We take the time before the request, which may last: a successor counts from its end at
        # most.
        began = time.monotonic()
        self._bucket.put(self._key, secrets.token_bytes(8))
        if self._leads():
            self._seen_leading = began


class Watch:
    """Looks at a manager's pulse from another machine, by that machine's own clock."""

    def __init__(
        self, bucket: Bucket, term: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.term = term
        self._bucket = bucket
        self._clock = clock
        self._beat: bytes | None = None
        self._changed_at = clock()
        self.seen_alive = False

    def is_dead(self) -> bool:
        """Look once; return whether the manager has ended or has been silent for too long."""
        now, beat = self._clock(), self._look()
        if beat == _LAST:
            return True
        if beat != self._beat:
            self.seen_alive = self.seen_alive or self._beat is not None
            self._beat, self._changed_at = beat, now
        return now - self._changed_at >= DEAD_SECONDS

    def _look(self) -> bytes:
        try:
            return self._bucket.get(f"{FOLDER}/{self.term:06d}")
        except FileMissing:
            return b""


_BYTES = 32


def make_token(path: Path) -> bool:
    """Write a new random token to `path`, readable by this user only, unless the file exists.

    Readers see a whole token or none. If several managers start at once, one of them makes it.

    Returns:
        Whether this call made it.
    """
    if path.exists():
        return False
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        publish(path.parent, path.name, [f"{secrets.token_urlsafe(_BYTES)}\n".encode()], mode=0o600)
    except OSError as error:
        raise SharedDirectoryError(path.parent, explain(error)) from error
    except StoreError as error:
        if not path.exists():
            raise SharedDirectoryError(path.parent, str(error)) from error
        return False
    return True


RUN_LOCK_NAME = "run.lock"
"""The lock in an experiment's folder, which the experiment's run holds."""

_LOOK_SECONDS = 2.0
"""How long to try: `is_abandoned` in another process holds the lock, too, for a moment."""


def lock_file(path: Path) -> BaseFileLock:
    """Lock a file until this process ends or releases it; create a missing file."""
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

    The manager holds a lock beside its file. The next manager that starts, for a cluster or a run,
    removes the files of killed managers.
    """
    for abandoned in (name for name in names_in(folder) if name.endswith(_LOCK)):
        if is_abandoned(folder / abandoned):
            _remove(folder, files, abandoned)
    name = f"manager-{uuid.uuid4().hex[:12]}"
    # We lock before we publish: another manager would remove a presence file without a held lock.
    lock = lock_file(folder / (name + _LOCK))
    files.put_new(name, [content.encode()])
    return Presence(name, lock, folder, files)


def _remove(folder: Path, files: Store, lock: str) -> None:
    # We remove the lock last, because managers find abandoned files by their locks.
    with suppress(StoreError):
        files.delete(lock.removesuffix(_LOCK))
        with suppress(OSError):
            (folder / lock).unlink(missing_ok=True)
