"""Datasets that Downpour knows by name, and their downloads."""

from __future__ import annotations

import gzip
import shutil
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import IO, Any, cast
from urllib.request import BaseHandler, Request, build_opener, install_opener

import numpy as np
from numpy.typing import NDArray

from downpour.base.errors import SpecError
from downpour.core.spec import Spec
from downpour.files.store.directory import names_in
from downpour.files.store.publish import writing
from downpour.host.extras import is_installed
from downpour.host.paths import FolderLock
from downpour.learning.datasets.source import Arrays, SourceFiles, check_room, fingerprint, held_out

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
    x = images.astype(np.uint8)
    train, test = held_out(y, len(y))
    return Arrays(train_x=x[train], train_y=y[train], test_x=x[test], test_y=y[test])


def _from_its_file() -> Pair | None:
    """Read the file that the loader reads: importing the loader costs most of a second."""
    if not is_installed("sklearn"):
        raise SpecError("dataset", "digits", _MISSING)
    package = find_spec("sklearn")
    if package is None or package.origin is None:
        return None
    path = Path(package.origin).parent / "datasets" / "data" / "digits.csv.gz"
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


_STEMS = ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1")


@dataclass(frozen=True, slots=True)
class IdxSource:
    """Four IDX files in `<folder>/raw/`; `folder` is also torchvision's name of the set.

    MNIST and its relatives, read with numpy, zipped or not. They lie as torchvision lays them out,
    in `MNIST/raw/` (or `FashionMNIST/raw/`, `KMNIST/raw/`) under the data folder or the download
    cache. torchvision downloads them only if they are in neither, so that a machine without it or
    without a network can train on files that it was given.
    """

    folder: str
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None

    def check(self, spec: Spec, data_dir: Path | None) -> None:
        """Pass: whether a download works shows only when it is tried."""

    def find(self, spec: Spec, data_dir: Path | None, downloads: Path) -> SourceFiles:
        """Find the four files in the data folder or the cache, or download them there."""
        places = (data_dir, downloads)
        paths = found_or_downloaded(spec, self.folder, places, _present, self._fetch)
        return SourceFiles(fingerprint=fingerprint(paths), read=lambda: self._read(paths))

    def _fetch(self, root: Path) -> None:
        import torchvision.datasets as known

        getattr(known, self.folder)(str(root), download=True)

    def _read(self, paths: list[Path]) -> Arrays:
        train_x, train_y, test_x, test_y = (read_idx(path) for path in paths)
        return Arrays(
            train_x=train_x,
            train_y=train_y,
            test_x=test_x,
            test_y=test_y,
            mean=self.mean,
            std=self.std,
        )


def read_idx(path: Path) -> NDArray[np.uint8]:
    """Read an IDX file of unsigned bytes, zipped where its name ends in .gz.

    The format: two zero bytes, type 8, the number of dimensions, each as a big-endian int32, then
    the values (http://yann.lecun.com/exdb/mnist).
    """
    try:
        with _opened(path) as file:
            shape = _shape(file.read(4), file, path.name)
            size_bytes = check_room(shape, 1, field="dataset", value=path.name)
            content = file.read(size_bytes + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise SpecError("dataset", path.name, f"cannot be read: {error}") from None
    if len(content) != size_bytes:
        raise SpecError("dataset", path.name, f"should hold {shape} bytes after its head")
    return np.frombuffer(content, np.uint8).reshape(shape)


def _opened(path: Path) -> IO[bytes]:
    return cast("IO[bytes]", gzip.open(path)) if path.suffix == ".gz" else path.open("rb")


def _shape(head: bytes, file: IO[bytes], name: str) -> tuple[int, ...]:
    dimensions = head[3] if head[:3] == b"\0\0\x08" and len(head) == 4 else 0
    lengths = file.read(4 * dimensions)
    if not 1 <= dimensions <= 3 or len(lengths) < 4 * dimensions:
        raise SpecError("dataset", name, "is not an IDX file of unsigned bytes")
    return tuple(np.frombuffer(lengths, ">u4").tolist())


def _present(folder: Path) -> list[Path] | None:
    """Return the four files in `raw/`, zipped or not."""
    paths: list[Path] = []
    for stem in _STEMS:
        names = (f"{stem}-ubyte", f"{stem}-ubyte.gz")
        paths += [folder / "raw" / name for name in names if (folder / "raw" / name).is_file()][:1]
    return paths if len(paths) == len(_STEMS) else None


FOLDER = "cifar-10-batches-bin"
URL = "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz"
MD5 = "c32a1d4ab5d03f1284b67883e8d87530"

_NAMES = (*(f"data_batch_{number}.bin" for number in range(1, 6)), "test_batch.bin")
_RECORD_BYTES = 1 + 3 * 32 * 32


class Cifar10:
    """60,000 color images, 32 x 32; a record is a label, then the red, green and blue planes.

    torchvision's own CIFAR-10 is the pickled version. We open no pickle here, not even a checked
    one. So the files must be in `cifar-10-batches-bin/` under the data folder. Otherwise
    torchvision's downloader fetches the binary archive into the cache and checks its MD5.
    """

    def check(self, spec: Spec, data_dir: Path | None) -> None:
        """Pass: whether a download works shows only when it is tried."""

    def find(self, spec: Spec, data_dir: Path | None, downloads: Path) -> SourceFiles:
        """Find the six files in the data folder or the cache, or download them there."""
        paths = found_or_downloaded(spec, FOLDER, (data_dir, downloads), _records_in, _fetch)
        return SourceFiles(fingerprint=fingerprint(paths), read=lambda: _read_records(paths))


def _records_in(folder: Path) -> list[Path] | None:
    paths = [folder / name for name in _NAMES]
    return paths if all(path.is_file() for path in paths) else None


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
