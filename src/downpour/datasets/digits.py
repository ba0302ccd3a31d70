"""The 1,797 handwritten digits that come with scikit-learn: 8 x 8 pixels of 0..16, no download."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from downpour.datasets.seeding import held_out
from downpour.datasets.source import Arrays, Found
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
    from sklearn.datasets import load_digits

    bunch = load_digits()
    x, y = bunch.images.astype(np.uint8), bunch.target.astype(np.int64)
    train, test = held_out(y, len(y))
    return Arrays(train_x=x[train], train_y=y[train], test_x=x[test], test_y=y[test])
