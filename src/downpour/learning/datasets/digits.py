"""The 1,797 handwritten digits of scikit-learn, without a download. Pixels (8 x 8) are 0..16."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from downpour.base.errors import SpecError
from downpour.core.spec import Spec
from downpour.host.extras import is_installed
from downpour.learning.datasets.seeding import held_out
from downpour.learning.datasets.source import Arrays, SourceFiles

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
