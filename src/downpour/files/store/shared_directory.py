"""The shared directory: its folders, and the store of each experiment."""

from __future__ import annotations

import contextlib
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from downpour.base.errors import FileMissing, OtherDirectory, SharedDirectoryError, StoreError
from downpour.files.store.base import Store, check_bare_name
from downpour.files.store.bucket import Bucket
from downpour.files.store.directory import DirectoryStore, names_in
from downpour.files.store.object_files import FileCache, ObjectFiles
from downpour.files.store.os_errors import explain, writing
from downpour.files.store.presence import Presence, announce
from downpour.files.store.publish import TEMPORARY_PREFIX, sync_directory
from downpour.files.store.retry import RetryPolicy

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
    own folder for it (`location.py`), where a manager keeps its journals, records and locks.
    """

    root: Path
    patience_seconds: float = 30.0
    away_seconds: float | None = None
    sleep: Callable[[float], object] = time.sleep
    datasets_at: Path | None = None
    bucket: Bucket | None = None

    @classmethod
    def open(cls, path: Path, *, create: bool) -> SharedDirectory:
        """Return the shared directory at `path` after proving that it is writable.

        Args:
            path: The folder.
            create: Whether to make it and its folders if they are missing. Only a manager that
                starts does so: a folder that is missing later may be a mount that is away.

        Raises:
            SharedDirectoryError: the folder does not exist, or we cannot use it; states the reason.
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

    def store(self, experiment: str) -> Store:
        """Return the files of an experiment."""
        return self.files_in(self.experiment_path(experiment))

    def create_experiment(self, experiment: str) -> Store:
        """Make a new experiment's folder and return its files.

        Raises:
            StoreError: another experiment has that identifier, or we cannot make the folder.
        """
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
        """Publish a manager's presence file, which stays until the manager withdraws it."""
        return announce(self.presence, self.files_in(self.presence), content)

    def read_presence(self, name: str) -> str:
        """Return the content of a manager's presence file.

        Raises:
            OtherDirectory: it does not exist, so the manager sees a different folder.
            SharedDirectoryError: the folder cannot be read.
        """
        try:
            patience = min(self.patience_seconds, _PRESENCE_PATIENCE_SECONDS)
            hasty = replace(self, patience_seconds=patience, away_seconds=None)
            files = hasty.files_in(self.presence)
            return files.read_unchecked(name, limit_bytes=_PRESENCE_BYTES_MAX).decode()
        except FileMissing:
            reason = "the manager's presence file is missing here, so it sees a different folder"
            raise OtherDirectory(self.where, reason) from None
        except UnicodeDecodeError:
            raise SharedDirectoryError(self.where, "a presence file that is not text") from None

    def files_in(self, path: Path) -> Store:
        """Return the files of a folder in this directory."""
        if self.bucket is not None:
            folder = path.relative_to(self.root).as_posix()
            return ObjectFiles(
                self.bucket, folder, FileCache(self.root / "cache"), self.retry_policy
            )
        return DirectoryStore(
            path,
            patience_seconds=self.patience_seconds,
            away_seconds=self.away_seconds,
            sleep=self.sleep,
        )


def _prove_writable(folder: Path) -> None:
    probe = folder / f"{TEMPORARY_PREFIX}{uuid.uuid4().hex}"
    try:
        probe.write_bytes(b"\0")
    finally:
        with contextlib.suppress(OSError):
            probe.unlink()
