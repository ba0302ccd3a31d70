"""Datasets that Downpour knows by name, and their downloads."""

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.request import BaseHandler, Request, build_opener, install_opener

import numpy as np
from numpy.typing import NDArray

from downpour.base.errors import SpecError, is_installed
from downpour.core.spec import Spec
from downpour.files.store.directory import names_in
from downpour.files.store.publish import writing
from downpour.host.paths import FolderLock
from downpour.learning.blame import message_of
from downpour.learning.datasets.source import Arrays, DataSource, SourceFiles, fingerprint, held_out

_MISSING = "needs scikit-learn; install downpour-sgd[digits]"


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
    """Read the file that scikit-learn's loader reads: importing that costs most of a second."""
    package = find_spec("sklearn")
    if package is None:
        raise SpecError("dataset", "digits", _MISSING)
    path = Path(package.origin or "").parent / "datasets" / "data" / "digits.csv.gz"
    table = np.loadtxt(path, dtype=np.int64, delimiter=",")
    x, y = table[:, :-1].reshape(-1, 8, 8).astype(np.uint8), table[:, -1]
    train, test = held_out(y, len(y))
    return Arrays(train_x=x[train], train_y=y[train], test_x=x[test], test_y=y[test])


SILENT_SECONDS = 60.0
"""How long a server may send nothing before the download fails."""


def found_or_downloaded(
    spec: Spec,
    folder: str,
    names: tuple[str, ...],
    places: tuple[Path | None, Path],
    fetch: Callable[[Path], object],
) -> list[Path]:
    """Return a dataset's files: those of these names in a folder of one of two places.

    The places are the data folder, if there is one, and the cache. There `fetch` downloads into a
    separate folder under a lock, which is renamed when it is whole, so that no process reads half
    of one. If it fails, or the server stops sending, one line says what to do without a network.
    """
    _, downloads = places
    for place in filter(None, places):
        if files := _present(place / folder, names):
            return files
    with writing(downloads, folder):
        downloads.mkdir(exist_ok=True)
        lock = FolderLock(downloads / f".{folder}.lock").acquire()
    with lock:
        # An NFS client caches that a file was missing until it lists the folder.
        names_in(downloads)
        is_there = _present(downloads / folder, names)
        reason = "" if is_there else _downloaded(folder, downloads, fetch)
    files = _present(downloads / folder, names)
    if files is None:
        raise SpecError(
            "dataset",
            spec.dataset,
            f"its files are missing, and torchvision could not download them ({reason}); "
            f"--data-dir or DOWNPOUR_DATA must name a folder that holds {folder}/",
        )
    return files


def _present(folder: Path, names: tuple[str, ...]) -> list[Path] | None:
    paths = [folder / name for name in names]
    return paths if all(path.is_file() for path in paths) else None


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


@dataclass(frozen=True, slots=True)
class IdxSource(DataSource):
    """MNIST or a relative, in torchvision's layout and read by torchvision.

    It is in the data folder or in the download cache. torchvision downloads it only if it is in
    neither, so that a machine without a network can train on files that a user put there.
    """

    name: str  # torchvision's class of the set, and its folder
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None

    def find(self, spec: Spec, data_dir: Path | None, downloads: Path) -> SourceFiles:
        """Find the four files in the data folder or the cache, or download them there."""
        places, fetch = (data_dir, downloads), partial(self._fetch, data_dir)
        paths = found_or_downloaded(spec, self.name, _IDX_FILES, places, fetch)
        return SourceFiles(fingerprint=fingerprint(paths), read=lambda: self._read(spec, paths))

    def _fetch(self, data_dir: Path | None, root: Path) -> None:
        from torchvision import datasets

        if data_dir is not None:  # torchvision unpacks whole archives instead of downloading
            raw = root / self.name / "raw"
            raw.mkdir(parents=True, exist_ok=True)
            for archive in (data_dir / self.name / "raw").glob("*.gz"):
                shutil.copy(archive, raw)
        getattr(datasets, self.name)(str(root), download=True)

    def _read(self, spec: Spec, paths: list[Path]) -> Arrays:
        # Not by torchvision's class, which prefers pickles in a folder beside these files.
        from torchvision.datasets.mnist import read_image_file, read_label_file

        train_x, train_y, test_x, test_y = map(str, paths)
        try:
            return Arrays(
                train_x=read_image_file(train_x).numpy(),
                train_y=read_label_file(train_y).numpy(),
                test_x=read_image_file(test_x).numpy(),
                test_y=read_label_file(test_y).numpy(),
                mean=self.mean,
                std=self.std,
            )
        except Exception as error:  # noqa: BLE001 - torchvision raises anything about damage
            accepted = f"{self.name}/ cannot be read: {message_of(error)}"
            raise SpecError("dataset", spec.dataset, accepted) from None


FOLDER = "cifar-10-batches-bin"
URL = "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz"
MD5 = "c32a1d4ab5d03f1284b67883e8d87530"

_NAMES = (*(f"data_batch_{number}.bin" for number in range(1, 6)), "test_batch.bin")
_RECORD_BYTES = 1 + 3 * 32 * 32


class Cifar10(DataSource):
    """60,000 color images, 32 x 32; a record is a label, then the red, green and blue planes.

    torchvision's own CIFAR-10 is the pickled version. We open no pickle here, not even a checked
    one: another process could exchange the file after the check. So the files must be in
    `cifar-10-batches-bin/` under the data folder. Otherwise torchvision's downloader fetches the
    binary archive into the cache and checks its MD5.
    """

    def find(self, spec: Spec, data_dir: Path | None, downloads: Path) -> SourceFiles:
        """Find the six files in the data folder or the cache, or download them there."""
        paths = found_or_downloaded(spec, FOLDER, _NAMES, (data_dir, downloads), _fetch)
        return SourceFiles(fingerprint=fingerprint(paths), read=lambda: _read_records(paths))


def _fetch(root: Path) -> None:
    from torchvision.datasets.utils import download_and_extract_archive

    download_and_extract_archive(URL, str(root), md5=MD5)


def _read_records(paths: list[Path]) -> Arrays:
    parts = [_records(path) for path in paths]
    train = np.concatenate(parts[:-1])
    test = parts[-1]
    return Arrays(
        train_x=_images(train),
        train_y=train[:, 0],
        test_x=_images(test),
        test_y=test[:, 0],
        mean=(0.4914, 0.4822, 0.4465),
        std=(0.2470, 0.2435, 0.2616),
    )


def _records(path: Path) -> NDArray[np.uint8]:
    content = np.fromfile(path, np.uint8)
    if content.size == 0 or content.size % _RECORD_BYTES:
        raise SpecError("dataset", path.name, f"should hold records of {_RECORD_BYTES} bytes")
    return content.reshape(-1, _RECORD_BYTES)


def _images(records: NDArray[np.uint8]) -> NDArray[Any]:
    return records[:, 1:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
