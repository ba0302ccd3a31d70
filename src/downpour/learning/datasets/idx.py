"""MNIST and its relatives: IDX files, read with numpy, zipped or not.

They lie as torchvision lays them out, in `MNIST/raw/` (or `FashionMNIST/raw/`, `KMNIST/raw/`) under
the data folder or the download cache. torchvision downloads them only if they are in neither, so
that a machine without it or without a network can train on files that it was given.
"""

from __future__ import annotations

import gzip
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import IO, cast

import numpy as np
from numpy.typing import NDArray

from downpour.base.errors import SpecError
from downpour.core.spec import Spec
from downpour.learning.datasets.downloading import found_or_downloaded
from downpour.learning.datasets.room import check_room
from downpour.learning.datasets.source import Arrays, SourceFiles, fingerprint

_STEMS = ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1")


@dataclass(frozen=True, slots=True)
class IdxSource:
    """Four IDX files in `<folder>/raw/`; `folder` is also torchvision's name of the set."""

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

    Raises:
        SpecError: it is not such a file, or it is short or long.
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
