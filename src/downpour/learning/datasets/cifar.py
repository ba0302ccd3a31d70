"""CIFAR-10 in its binary version, read with numpy.

torchvision's own CIFAR-10 is the pickled version. We open no pickle here, not even a checked one.
So the files must be in `cifar-10-batches-bin/` under the data folder. Otherwise torchvision's
downloader fetches the binary archive into the cache and checks its MD5.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from downpour.base.errors import SpecError
from downpour.core.spec import Spec
from downpour.learning.datasets.downloading import found_or_downloaded
from downpour.learning.datasets.source import Arrays, SourceFiles, fingerprint

FOLDER = "cifar-10-batches-bin"
URL = "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz"
MD5 = "c32a1d4ab5d03f1284b67883e8d87530"

_NAMES = (*(f"data_batch_{number}.bin" for number in range(1, 6)), "test_batch.bin")
_RECORD_BYTES = 1 + 3 * 32 * 32


class Cifar10:
    """60,000 color images, 32 x 32; a record is a label, then the red, green and blue planes."""

    def check(self, spec: Spec, data_dir: Path | None) -> None:
        """Pass: whether a download works shows only when it is tried."""

    def find(self, spec: Spec, data_dir: Path | None, downloads: Path) -> SourceFiles:
        """Find the six files in the data folder or the cache, or download them there."""
        paths = found_or_downloaded(spec, FOLDER, (data_dir, downloads), _present, _fetch)
        return SourceFiles(fingerprint=fingerprint(paths), read=lambda: _read(paths))


def _present(folder: Path) -> list[Path] | None:
    paths = [folder / name for name in _NAMES]
    return paths if all(path.is_file() for path in paths) else None


def _fetch(root: Path) -> None:
    from torchvision.datasets.utils import download_and_extract_archive

    download_and_extract_archive(URL, str(root), md5=MD5)


def _read(paths: list[Path]) -> Arrays:
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
