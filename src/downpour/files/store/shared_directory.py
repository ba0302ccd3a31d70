"""The shared directory: where it is, its folders, and proof that processes see the same one.

For a URL, each machine has its own folder (`DOWNPOUR_LOCAL`) for fetched files; the manager's also
has journals, records and locks.

Prepared datasets are folders on each machine, as in any shared directory, so readers map them and
check every checksum. We send `facts.json` last: if a folder in the object store has it, the folder
is whole.

A lock ends with its process, no matter how the process ends. The file may stay: if another process
can lock it, its holder is dead.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from hashlib import sha256
from pathlib import Path

from filelock import BaseFileLock, Timeout

from downpour.base.errors import FileMissing, OtherDirectory, SharedDirectoryError, StoreError
from downpour.base.names import whole_id
from downpour.files.store.bucket import Bucket, KeyTakenError
from downpour.files.store.directory import (
    DirectoryStore,
    FileCache,
    ObjectFiles,
    names_in,
    open_regular,
)
from downpour.files.store.layout import Moved, Store, check_bare_name, unnoticed
from downpour.files.store.publish import (
    TEMPORARY_PREFIX,
    RetryPolicy,
    explain,
    publish,
    sync_directory,
    writing,
)
from downpour.host.paths import FolderLock, is_object_store, path_of

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


MANAGER_LOCK_NAME = "manager.lock"
"""The lock in a shared directory, which the leading manager holds."""


def lost_its_manager(experiment: Path) -> bool:
    """Whether the run, or else the leading manager, of an experiment's folder is provably dead."""
    return is_abandoned(_lock_over(experiment))


def is_at_work(experiment: Path) -> bool:
    """Whether a run, or else a leading manager, holds the lock over an experiment's folder."""
    lock = _lock_over(experiment)
    return lock.exists() and not is_abandoned(lock)


def _lock_over(experiment: Path) -> Path:
    run = experiment / RUN_LOCK_NAME
    return run if run.exists() else experiment.parents[1] / MANAGER_LOCK_NAME


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


def _remove(folder: Path, files: Store, lock: str) -> None:
    # We remove the lock last, because managers find abandoned files by their locks.
    with suppress(StoreError):
        files.delete(lock.removesuffix(_LOCK))
        with suppress(OSError):
            (folder / lock).unlink(missing_ok=True)


PROCESS_LOGS = "logs/processes"
"""The place of the processes' logs in a shared directory or a bucket."""

_PRESENCE_BYTES_MAX = 4096
# Short, because no process has looked up the name before, so no cache can hide it for long.
_PRESENCE_PATIENCE_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class SharedDirectory:
    """The folder that manager, workers and clients share; `open` checks it first.

    `datasets_at` is the place of prepared datasets if they belong to another directory. A `bucket`,
    if there is one, holds all exchanged files, under the same names. `root` is then this machine's
    own folder for it, where a manager keeps its journals, records and locks. `moved` learns of the
    bytes of experiments' files, unless a bucket holds them.
    """

    root: Path
    patience_seconds: float = 30.0
    away_seconds: float | None = None
    sleep: Callable[[float], object] = time.sleep
    datasets_at: Path | None = None
    bucket: Bucket | None = None
    moved: Moved = unnoticed

    @classmethod
    def open(cls, path: Path, *, create: bool) -> SharedDirectory:
        """Return the shared directory at `path` after proving that it is writable.

        Args:
            path: The folder.
            create: Whether to make it and its folders if they are missing. Only a manager that
                starts does so: a folder that is missing later may be a mount that is away.
        """
        root = path.expanduser().absolute()
        if not create:
            names_in(root)
        shared = cls(root)
        folders = (shared.presence, shared.datasets, shared.experiments, shared.process_logs)
        try:
            for folder in folders if create else ():
                folder.mkdir(parents=True, exist_ok=True)
            # No manager may have begun there yet.
            _prove_writable(shared.presence if shared.presence.is_dir() else root)
        except OSError as error:
            raise SharedDirectoryError(root, explain(error)) from error
        return shared

    def prove_writable(self) -> None:
        """Raise SharedDirectoryError if the directory cannot be written."""
        with writing(self.root, self.presence.name):
            _prove_writable(self.presence)

    @property
    def retry_policy(self) -> RetryPolicy:
        """How long to retry reads of a file, and operations on the directory itself."""
        return RetryPolicy(
            seconds=self.patience_seconds, away_seconds=self.away_seconds, sleep=self.sleep
        )

    @property
    def where(self) -> str:
        """The user's name for it."""
        return self.bucket.url if self.bucket is not None else str(self.root)

    @property
    def presence(self) -> Path:
        """The folder in which managers announce themselves."""
        return self.root / "presence"

    @property
    def terms(self) -> Path:
        """The folder in which managers record that they lead; the highest number leads."""
        return self.root / "terms"

    @property
    def datasets(self) -> Path:
        """The folder of prepared datasets."""
        return self.datasets_at or self.root / "datasets"

    @property
    def experiments(self) -> Path:
        """The folder of experiments, each in a folder named by its identifier."""
        return self.root / "experiments"

    @property
    def process_logs(self) -> Path:
        """The folder of the logs that managers, workers and launchers keep."""
        return self.root / PROCESS_LOGS

    def experiment_path(self, experiment: str) -> Path:
        """Return an experiment's folder, whether it exists or not."""
        return self.experiments / check_bare_name(experiment)

    def whole_id(self, begin: str) -> str:
        """Return the only ID here that begins like this, or the text itself if none does."""
        return whole_id(begin, (path.name for path in self.experiments.glob("*")))

    def store(self, experiment: str) -> Store:
        """Return the files of an experiment."""
        return self.files_in(self.experiment_path(experiment))

    def create_experiment(self, experiment: str) -> Store:
        """Make a new experiment's folder and return its files."""
        path = self.experiment_path(experiment)
        try:
            path.mkdir()
            sync_directory(self.experiments)
        except FileExistsError:
            raise StoreError(f"experiment {experiment} already exists") from None
        except OSError as error:
            raise SharedDirectoryError(self.root, explain(error)) from error
        return self.files_in(path)

    def announce(self, content: str) -> Presence:
        """Publish a manager's presence file, which stays until the manager withdraws it.

        The manager holds a lock beside its file. The next manager that starts, for a cluster or a
        run, removes the files of killed managers.
        """
        folder, files = self.presence, self.files_in(self.presence)
        for abandoned in (name for name in names_in(folder) if name.endswith(_LOCK)):
            if is_abandoned(folder / abandoned):
                _remove(folder, files, abandoned)
        name = f"manager-{uuid.uuid4().hex[:12]}"
        # We lock before we publish: another manager would remove a file without a held lock.
        lock = lock_file(folder / (name + _LOCK))
        files.put_new(name, [content.encode()])
        return Presence(name, lock, folder, files)

    def read_presence(self, name: str) -> str:
        """Return the content of a manager's presence file."""
        reason = "the manager's presence file is missing here, so it sees a different folder"
        # A manager makes this folder, so no manager has ever led in a directory without one.
        if self.bucket is None and self.root.is_dir() and not self.presence.is_dir():
            raise OtherDirectory(self.where, reason)
        try:
            patience = min(self.patience_seconds, _PRESENCE_PATIENCE_SECONDS)
            hasty = replace(self, patience_seconds=patience, away_seconds=None)
            files = hasty.files_in(self.presence)
            return files.read_unchecked(name, limit_bytes=_PRESENCE_BYTES_MAX).decode()
        except FileMissing:
            raise OtherDirectory(self.where, reason) from None
        except UnicodeDecodeError:
            raise SharedDirectoryError(self.where, "a presence file that is not text") from None

    def files_in(self, path: Path) -> Store:
        """Return the files of a folder in this directory."""
        if self.bucket is not None:
            folder = path.relative_to(self.root).as_posix()
            cache = FileCache(self.root / "cache")
            return ObjectFiles(self.bucket, folder, cache, self.retry_policy, self.moved)
        return DirectoryStore(path, self.retry_policy, self.moved)


def _prove_writable(folder: Path) -> None:
    probe = folder / f"{TEMPORARY_PREFIX}{uuid.uuid4().hex}"
    try:
        probe.write_bytes(b"\0")
    finally:
        with suppress(OSError):
            probe.unlink()


LOCAL_VARIABLE = "DOWNPOUR_LOCAL"
LOCAL_DEFAULT = "~/.local/share/downpour"


def open_location(location: str, *, create: bool) -> SharedDirectory:
    """Return the shared directory at a path or URL, after proving that it is writable.

    Only a manager that starts may `create` a missing folder.
    """
    if not is_object_store(location):
        return SharedDirectory.open(path_of("shared", location), create=create)
    shared = seen_location(location)
    if shared.bucket is None:
        return shared
    shared.bucket.check_conditions()
    # Create this machine's own folder, because no other code does.
    SharedDirectory.open(shared.root, create=True)
    return shared


def seen_location(location: str | os.PathLike[str]) -> SharedDirectory:
    """Return the shared directory at a path or URL, without looking or creating anything."""
    if not (isinstance(location, str) and is_object_store(location)):
        return SharedDirectory(path_of("shared", location))
    bucket = Bucket.at(location)
    return replace(SharedDirectory(folder_of(bucket.url)), bucket=bucket)


def own_folder() -> Path:
    """Return this machine's folder for copies of shared files; it may not exist yet."""
    return path_of(LOCAL_VARIABLE, os.environ.get(LOCAL_VARIABLE) or LOCAL_DEFAULT).absolute()


def folder_of(url: str) -> Path:
    """Return this machine's own folder for an object store's URL, whether it exists or not."""
    readable = re.sub(r"[^A-Za-z0-9]+", "-", url)[:64].strip("-")
    return own_folder() / f"{readable}-{sha256(url.encode()).hexdigest()[:8]}"


def not_kept(reason: str) -> StoreError:
    """Return the error of this machine's folder, which is not the shared directory's."""
    return StoreError(f"{own_folder()} ({LOCAL_VARIABLE}): {reason}")


@contextmanager
def keeping_here() -> Iterator[None]:
    """Translate an OSError of a block that writes to this machine's folder."""
    try:
        yield
    except OSError as error:
        raise not_kept(explain(error)) from error


_LAST = "facts.json"
_ORIGIN = "origin"
"""A fetched dataset's file with the bucket's URL, and the folder there."""

_RETRIES = RetryPolicy(seconds=120.0)


def send_dataset(shared: SharedDirectory, key: str) -> None:
    """Send a prepared dataset to the object store, unless it is there."""
    if shared.bucket is None:
        return
    for name in _unsent(shared, shared.bucket, key):
        # Another experiment may have prepared it: the key determines all bytes.
        with suppress(KeyTakenError):
            shared.bucket.put_new(f"{_place(shared, key)}/{name}", shared.datasets / key / name)


def is_sent(shared: SharedDirectory, key: str) -> bool:
    """Whether workers find a prepared dataset in the object store, if there is one."""
    return shared.bucket is None or not _unsent(shared, shared.bucket, key)


def _unsent(shared: SharedDirectory, bucket: Bucket, key: str) -> list[str]:
    """Return the names of the files that the object store lacks, in the order to send them."""
    held, there = names_in(shared.datasets / key), bucket.names(_place(shared, key))
    if _ORIGIN in held and _LAST not in there:  # a fetched folder lacks the large arrays
        raise FileMissing(f"{key}/{_LAST}")
    return sorted(set(held) - {*there, _ORIGIN}, key=lambda name: (name == _LAST, name))


def fetch_dataset(shared: SharedDirectory, key: str) -> None:
    """Fetch a prepared dataset to this machine if it is missing here.

    Arrays with digests of their blocks stay in the object store; see `range_reader`.
    """
    if shared.bucket is None or (shared.datasets / check_bare_name(key) / _LAST).exists():
        return
    place = _place(shared, key)
    names = shared.bucket.names(place)
    if _LAST not in names:
        raise FileMissing(f"{key}/{_LAST}")
    arrays = {name.removesuffix(".digests") for name in names if name.endswith(".digests")}
    part = shared.datasets / f"{TEMPORARY_PREFIX}{uuid.uuid4().hex}"
    try:
        with keeping_here():
            part.mkdir()
            for name in names:
                if ".npy" not in name or name.partition(".")[0] not in arrays:
                    shared.bucket.fetch(f"{place}/{check_bare_name(name)}", part / name)
            (part / _ORIGIN).write_text(f"{shared.bucket.url}\n{place}", "utf-8")
            _give_name(part, shared.datasets / key)
    finally:
        shutil.rmtree(part, ignore_errors=True)


def range_reader(folder: Path, name: str) -> Callable[[int, int], bytes]:
    """Return a function that reads the bytes [begin, end) of a prepared dataset's file.

    Raises FileNotFoundError if it is neither here nor in the bucket that the dataset came from.
    """
    if (folder / name).exists():

        def read(begin: int, end: int) -> bytes:
            with open(open_regular(folder / name), "rb", buffering=0) as file:
                file.seek(begin)
                return file.read(end - begin)

        return read
    url, place = (folder / _ORIGIN).read_text("utf-8").split("\n")
    get = partial(Bucket.at(url).get_range, f"{place}/{name}")

    def fetch(begin: int, end: int) -> bytes:
        with suppress(FileMissing):
            return _RETRIES.call_through_outage(partial(get, begin, end)) or b""
        raise FileMissing(f"{folder.name}/{name}")  # with the key, so that the manager sends it

    return fetch


def _place(shared: SharedDirectory, key: str) -> str:
    return f"{shared.datasets.name}/{check_bare_name(key)}"


def _give_name(part: Path, folder: Path) -> None:
    try:
        part.rename(folder)
    except OSError:
        # Another process of this machine may have fetched it meanwhile.
        if not (folder / _LAST).exists():
            raise
