"""A small sketch of an example: enough to notice that another machine reads a different one.

Integers and text must be the same to the bit. Of floats the mean and the mean size count, to a
thousandth, because decoding and scaling round differently on other processors.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import xxhash
from numpy.typing import NDArray
from torch.utils._pytree import tree_leaves

from downpour.learning.models import generators
from downpour.learning.plain_tensors import is_plain
from downpour.learning.tasks.batches import read
from downpour.learning.tasks.task import ExampleList

_TOLERANCE = 1e-3


def sketched(examples: ExampleList, part: str, index: int) -> list[Any]:
    """Return a sketch of an example of a part, as values that JSON holds.

    The example's draws from global generators follow from its index here.
    """
    with generators.seeded(index):
        example = read(examples, part, [index])
    return [_leaf(leaf) for leaf in tree_leaves(example)]


def resemble(one: Sequence[Any], other: Sequence[Any]) -> bool:
    """Say whether two sketches can be of the same example."""
    return len(one) == len(other) and all(map(_alike, one, other))


def _leaf(leaf: Any) -> list[Any]:
    if isinstance(leaf, bool | int | str | bytes | None.__class__):
        return ["plain", repr(leaf)[:200]]
    if isinstance(leaf, float):
        leaf = np.float64(leaf)
    if isinstance(leaf, torch.Tensor):
        if not is_plain(leaf):
            return ["object", f"{leaf.layout} {leaf.dtype}", leaf.dim()]
        leaf = _array(leaf)
    if not isinstance(leaf, np.ndarray | np.generic):
        return ["object", type(leaf).__name__]
    array = np.asarray(leaf)
    if array.dtype.kind == "f":
        numbers = np.nan_to_num(array.astype(np.float64))
        size = float(np.abs(numbers).mean()) if array.size else 0.0
        return ["float", list(array.shape), float(numbers.mean()) if array.size else 0.0, size]
    content = np.ascontiguousarray(array).reshape(-1)
    digest = xxhash.xxh3_64_hexdigest(content.tobytes())
    return [str(array.dtype), list(array.shape), digest]


def _array(leaf: torch.Tensor) -> NDArray[Any]:
    """Return a copy of a tensor's numbers, as floats that numpy has."""
    leaf = leaf.detach().cpu()
    if leaf.is_floating_point() and leaf.dtype not in {torch.float16, torch.float64}:
        return leaf.to(torch.float32, copy=True).numpy()
    return leaf.clone().numpy()


def _alike(one: list[Any], other: list[Any]) -> bool:
    if one[:2] != other[:2] or one[0] != "float" or one == other:
        return one == other
    (mean, size), (mean_there, size_there) = one[2:], other[2:]
    slack = _TOLERANCE * max(size, size_there)
    return math.isclose(size, size_there, abs_tol=slack) and abs(mean - mean_there) <= slack
