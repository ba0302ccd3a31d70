"""The two layouts of named arrays: MedMNIST's, and plain x and y with or without a test part."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from downpour.datasets.seeding import held_out
from downpour.datasets.source import Arrays
from downpour.errors import SpecError

ACCEPTED = (
    "numeric arrays train_images, train_labels, test_images, test_labels; or x, y, and perhaps "
    "x_test, y_test"
)
_MEDMNIST = ("train_images", "train_labels", "test_images", "test_labels")


def from_names(named: Mapping[str, NDArray[Any]], *, field: str, value: str) -> Arrays:
    """Return the examples among named arrays; without a test part, a fifth is held out.

    Raises:
        SpecError: names `field` and `value`, where the names, lengths or types do not fit.
    """
    if all(name in named for name in _MEDMNIST):
        parts = [named[name] for name in _MEDMNIST]
    elif "x" in named and "y" in named:
        parts = [named["x"], named["y"]]
        parts += [named["x_test"], named["y_test"]] if {"x_test", "y_test"} <= set(named) else []
    else:
        raise SpecError(field, value, f"{ACCEPTED} are needed; there are {', '.join(named)}")
    parts = [np.asarray(part) for part in parts]
    if any(part.dtype.kind not in "biuf" or part.ndim == 0 for part in parts):
        raise SpecError(field, value, f"{ACCEPTED} are needed; one is not numeric, or no array")
    if any(len(part) == 0 for part in parts):
        raise SpecError(field, value, "has no training or no test examples")
    if any(len(x) != len(y) for x, y in zip(parts[::2], parts[1::2], strict=True)):
        raise SpecError(field, value, "there must be as many labels as examples")
    if len(parts) == 2:
        return _held_out(*parts)
    return Arrays(train_x=parts[0], train_y=parts[1], test_x=parts[2], test_y=parts[3])


def _held_out(x: NDArray[Any], y: NDArray[Any]) -> Arrays:
    flat = y.reshape(len(y), -1)
    classes = np.unique(flat, return_inverse=True)[1] if flat.shape[1] == 1 else None
    train, test = held_out(None if classes is None else classes.ravel(), len(x))
    return Arrays(train_x=x[train], train_y=y[train], test_x=x[test], test_y=y[test])
