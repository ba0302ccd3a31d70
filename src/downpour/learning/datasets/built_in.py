"""Datasets that Downpour knows by name, and their downloads."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.request import BaseHandler, Request, build_opener, install_opener

import numpy as np
from numpy.typing import NDArray

from downpour.base.errors import SpecError
from downpour.core.spec import Spec
from downpour.files.store.directory import names_in
from downpour.files.store.publish import writing
from downpour.host.extras import is_installed
from downpour.host.paths import FolderLock
from downpour.learning.datasets.source import Arrays, SourceFiles, fingerprint, held_out

_MISSING = "needs scikit-learn; install downpour-sgd[digits]"

Pair = tuple[NDArray[Any], NDArray[np.int64]]


class Digits:
    """scikit-learn's `load_digits`; every fifth of each class is the test set."""

    def check(self, spec: Spec, data_dir: Path | None) -> None:
        """Refuse where scikit-learn, which has the data, is not installed."""
        del spec, data_dir
        if not is_installed("sklearn"):
            raise SpecError("dataset", "digits", _MISSING)

    def find(self, spec: Spec, data_dir: Path | None, downloads: Path) -> SourceFiles:
        """Find nothing: the data are part of an installed package."""
        del spec, data_dir, downloads
        return SourceFiles(fingerprint=(), read=_read)


def _read() -> Arrays:
    images, y = _from_its_file() or _from_its_loader()
    train, test = held_out(y, len(y))
    x = images.astype(np.uint8)
    return Arrays(train_x=x[train], train_y=y[train], test_x=x[test], test_y=y[test])


def _from_its_file() -> Pair | None:
    """Read the file that the loader reads: importing the loader costs most of a second."""
    package = find_spec("sklearn")
    if package is None:
        raise SpecError("dataset", "digits", _MISSING)
    path = Path(package.origin or "").parent / "datasets" / "data" / "digits.csv.gz"
    if not path.is_file():
        return None
    table = np.loadtxt(path, dtype=np.int64, delimiter=",")
    return table[:, :-1].reshape(-1, 8, 8), table[:, -1]


def _from_its_loader() -> Pair:
    from sklearn.datasets import load_digits

    digits = load_digits()
    return digits.images, digits.target.astype(np.int64)


SILENT_SECONDS = 60.0
"""How long a server may send nothing before the download fails."""

Present = Callable[[Path], list[Path] | None]


def found_or_downloaded(
    spec: Spec,
    folder: str,
    places: tuple[Path | None, Path],
    present: Present,
    fetch: Callable[[Path], object],
) -> list[Path]:
    """Return a dataset's files.

    A download goes to its own folder under a lock and is renamed into the cache when it is whole,
    so that no process reads half of one. If it fails, or the server stops sending, one line says
    what to do without a network.

    Args:
        spec: names the dataset.
        folder: the name of the folder that holds the files, in either place.
        places: the data folder, if there is one, and the cache that a download goes to.
        present: returns the files under a place's folder, or None if one is missing.
        fetch: downloads into a place, with torchvision.
    """
    data_dir, downloads = places
    files = (present(data_dir / folder) if data_dir else None) or present(downloads / folder)
    if files:
        return files
    with writing(downloads, folder):
        downloads.mkdir(exist_ok=True)
        lock = FolderLock(downloads / f".{folder}.lock").acquire()
    with lock:
        # An NFS client caches that a file was missing until it lists the folder.
        names_in(downloads)
        reason = "" if present(downloads / folder) else _downloaded(folder, downloads, fetch)
    files = present(downloads / folder)
    if files is None:
        raise SpecError(
            "dataset",
            spec.dataset,
            f"its files are missing, and torchvision could not download them ({reason}); "
            f"--data-dir or DOWNPOUR_DATA must name a folder that holds {folder}/",
        )
    return files


def _downloaded(folder: str, downloads: Path, fetch: Callable[[Path], object]) -> str:
    """Download; return the reason of a failure, or what to say if the files are incomplete."""
    partial = downloads / f".{folder}.partial"
    # For the whole process: torchvision calls `urlopen`, and takes neither opener nor timeout.
    install_opener(build_opener(_Deadlines()))
    try:
        fetch(partial)
        shutil.rmtree(downloads / folder, ignore_errors=True)
        (partial / folder).rename(downloads / folder)
    except (ImportError, OSError, RuntimeError) as error:
        return _reason(error)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return "its contents are wrong"


def _reason(error: Exception) -> str:
    """Return its first line, with those after it where it only announces them, as MNIST's does."""
    lines = str(error).splitlines() or [type(error).__name__]
    return " ".join(lines) if lines[0].endswith(":") else lines[0]


class _Deadlines(BaseHandler):
    """Sets a timeout for requests without one: torchvision's would wait forever."""

    def http_request(self, request: Request) -> Request:
        """Set the timeout; urllib calls this before each request."""
        if not isinstance(request.timeout, int | float):
            request.timeout = SILENT_SECONDS
        return request

    https_request = http_request


_IDX_FILES = tuple(
    f"raw/{stem}-ubyte"
    for stem in ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1")
)
_BATCH_FILES = (*(f"data_batch_{n}" for n in range(1, 6)), "test_batch", "batches.meta")


@dataclass(frozen=True, slots=True)
class VisionSet:
    """A dataset of torchvision, in the layout of torchvision.

    It is in the data folder or in the download cache. torchvision downloads it only if it is in
    neither, so that a machine without a network can train on files that a user put there. The files
    of CIFAR-10 are pickles, which torchvision opens only if their checksums are the known ones.
    """

    name: str  # its class in torchvision.datasets
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    folder: str = ""  # of its files; by default called as the class
    files: tuple[str, ...] = _IDX_FILES

    def check(self, spec: Spec, data_dir: Path | None) -> None:
        """Pass: whether a download works shows only when it is tried."""

    def find(self, spec: Spec, data_dir: Path | None, downloads: Path) -> SourceFiles:
        """Find the files in the data folder or the cache, or download them there."""
        places, folder = (data_dir, downloads), self.folder or self.name
        paths = found_or_downloaded(spec, folder, places, self._present, self._fetch)
        root = data_dir if data_dir is not None and data_dir in paths[0].parents else downloads
        return SourceFiles(fingerprint=fingerprint(paths), read=lambda: self._read(spec, root))

    def _present(self, folder: Path) -> list[Path] | None:
        paths = [folder / name for name in self.files]
        return paths if all(path.is_file() for path in paths) else None

    def _fetch(self, root: Path) -> None:
        self._open(root, download=True)

    def _open(self, root: Path, **options: bool) -> Any:
        from torchvision import datasets

        return getattr(datasets, self.name)(str(root), **options)

    def _read(self, spec: Spec, root: Path) -> Arrays:
        try:
            train, test = (self._open(root, train=is_train) for is_train in (True, False))
        except Exception as error:  # noqa: BLE001 - torchvision raises anything about damage
            reason = " ".join(str(error).split()) or type(error).__name__
            where = f"{self.folder or self.name}/ cannot be read: {reason}"
            raise SpecError("dataset", spec.dataset, where) from None
        return Arrays(
            train_x=np.asarray(train.data),
            train_y=np.asarray(train.targets),
            test_x=np.asarray(test.data),
            test_y=np.asarray(test.targets),
            mean=self.mean,
            std=self.std,
        )


CIFAR10 = VisionSet(
    "CIFAR10",
    mean=(0.4914, 0.4822, 0.4465),
    std=(0.2470, 0.2435, 0.2616),
    folder="cifar-10-batches-py",
    files=_BATCH_FILES,
)
