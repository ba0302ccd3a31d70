"""The two layouts of named arrays: MedMNIST's, and plain x and y with or without a test part.

Other names are refused, not dropped: a user who gives an `attention_mask` expects it to be used.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from downpour.base.errors import SpecError
from downpour.learning.datasets.seeding import held_out
from downpour.learning.datasets.source import Arrays

ACCEPTED = (
    "numeric arrays train_images, train_labels, test_images, test_labels; or x, y, and "
    "optionally x_test, y_test"
)
_MEDMNIST = ("train_images", "train_labels", "test_images", "test_labels")
_PLAIN = ("x", "y")
_TEST = ("x_test", "y_test")
_TRAINED_ON = (_MEDMNIST, _PLAIN, (*_PLAIN, *_TEST))
_MEASURED_ON = (*_TRAINED_ON, _MEDMNIST[2:], _TEST)
_NORMALIZE = "normalize"


def from_names(named: Mapping[str, Any], *, field: str, value: str) -> Arrays:
    """Return the examples among named arrays; without a test part, a fifth is held out.

    `normalize`, true or false, says whether numbers are amounts, see `Arrays`.

    Raises:
        SpecError: names `field` and `value`, where the names, lengths or types do not fit.
    """
    parts = _checked_parts(named, _TRAINED_ON, field, value)
    train_x, train_y, test_x, test_y = parts if len(parts) == 4 else _held_out(*parts)
    return Arrays(
        train_x=train_x,
        train_y=train_y,
        test_x=test_x,
        test_y=test_y,
        normalize=_normalize(named, field, value),
    )


def labelled(named: Mapping[str, Any], *, field: str, value: str) -> tuple[Any, Any]:
    """Return x and y of the test part among named arrays, or of all if there is none.

    The test part may be alone, without training examples.

    Raises:
        SpecError: as `from_names` does.
    """
    x, y = _checked_parts(named, _MEASURED_ON, field, value)[-2:]
    return x, y


def _checked_parts(
    named: Mapping[str, Any], layouts: tuple[tuple[str, ...], ...], field: str, value: str
) -> list[NDArray[Any]]:
    names = _layout_of(named, layouts, field, value)
    try:
        parts = [np.asarray(named[name]) for name in names]
    except (ValueError, TypeError, RuntimeError) as error:
        reason = " ".join(str(error).split())
        raise SpecError(
            field, value, f"must hold {ACCEPTED}; one is not an array: {reason}"
        ) from None
    for name, part in zip(names, parts, strict=True):
        if part.dtype.kind not in "biuf" or part.ndim == 0:
            kind = "no array" if part.ndim == 0 else f"not numeric ({part.dtype})"
            raise SpecError(field, value, f"must hold {ACCEPTED}; {name} is {kind}")
    if any(len(part) == 0 for part in parts):
        raise SpecError(field, value, "has no training or no test examples")
    if any(len(x) != len(y) for x, y in zip(parts[::2], parts[1::2], strict=True)):
        raise SpecError(field, value, "the numbers of labels and examples must be equal")
    return parts


def _layout_of(
    named: Mapping[str, Any], layouts: tuple[tuple[str, ...], ...], field: str, value: str
) -> tuple[str, ...]:
    """Return the names of the layout that the arrays have, in full and without others."""
    given = set(named) - {_NORMALIZE}
    whole = max((names for names in layouts if given >= set(names)), key=len, default=None)
    if whole is None:
        there = ", ".join(map(str, named)) or "none"
        raise SpecError(field, value, f"must hold {ACCEPTED}; it holds {there}")
    extra = sorted(map(str, given - set(whole)))
    if extra and set(extra) <= set(_TEST):
        raise SpecError(field, value, f"has only {extra[0]}; x_test and y_test go together")
    if extra:
        others = f"cannot use {', '.join(extra)}; accepted are {ACCEPTED}, normalize"
        raise SpecError(field, value, others)
    return whole


def _normalize(named: Mapping[str, Any], field: str, value: str) -> bool | None:
    if _NORMALIZE not in named:
        return None
    flag = np.asarray(named[_NORMALIZE])
    if flag.dtype != np.bool_ or flag.size != 1:
        raise SpecError(field, value, f"normalize is {named[_NORMALIZE]!r}; it is true or false")
    return bool(flag.item())


def _held_out(x: NDArray[Any], y: NDArray[Any]) -> tuple[NDArray[Any], ...]:
    flat = y.reshape(len(y), -1)
    classes = np.unique(flat, return_inverse=True)[1] if flat.shape[1] == 1 else None
    train, test = held_out(None if classes is None else classes.ravel(), len(x))
    return x[train], y[train], x[test], y[test]
