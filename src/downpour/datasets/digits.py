"""The 1,797 handwritten digits that come with scikit-learn: 8 x 8 pixels of 0..16, no download."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import numpy as np

from downpour.datasets.seeding import held_out
from downpour.datasets.source import Arrays, Found
from downpour.errors import SpecError
from downpour.spec import Spec


class Digits:
    """scikit-learn's `load_digits`; every fifth of each class is the test set."""

    def check(self, spec: Spec, data_dir: Path | None) -> None:
        """Nothing can be wrong: the data are part of an installed package."""

    def find(self, spec: Spec, data_dir: Path | None, downloads: Path) -> Found:
        """Find nothing: the data are part of an installed package."""
        del spec, data_dir, downloads
        return Found(fingerprint=(), read=_read)


def _read() -> Arrays:
    """Read what `sklearn.datasets.load_digits` reads; importing that costs most of a second."""
    found = find_spec("sklearn")
    if found is None or found.origin is None:
        raise SpecError("dataset", "digits", "a dataset whose library is there: scikit-learn")
    path = Path(found.origin).parent / "datasets" / "data" / "digits.csv.gz"
    table = np.loadtxt(path, dtype=np.uint8, delimiter=",")
    x, y = table[:, :-1].reshape(-1, 8, 8), table[:, -1].astype(np.int64)
    train, test = held_out(y, len(y))
    return Arrays(train_x=x[train], train_y=y[train], test_x=x[test], test_y=y[test])
