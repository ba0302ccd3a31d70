"""Checks the `facts.json` of prepared examples against the arrays that it describes.

A model that was exported brings the file along, so it may come from anybody. The file is corrupt if
no preparation can have written it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Annotated, Any

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from downpour.base.errors import FileCorrupt
from downpour.base.values import DatasetFacts
from downpour.learning.datasets.array_folder import FACTS_FILE

_Count = Annotated[int, Field(ge=0, lt=2**62)]
_Length = Annotated[int, Field(ge=1, lt=2**62)]
_DTYPES = {"x": ("|u1", "<f4"), "y": ("<i8", "<f4")}


class _Array(BaseModel):
    model_config = ConfigDict(frozen=True, strict=True)

    dtype: str
    shape: list[_Count] = Field(min_length=1, max_length=32)


class Stated(BaseModel):
    """The content of a `facts.json`; see `PreparedDataset` for `mean` and `std`."""

    model_config = ConfigDict(frozen=True, strict=True, allow_inf_nan=False)

    train_samples: _Count
    test_samples: _Count
    sample_shape: list[_Length] = Field(min_length=1)
    classes: _Count
    targets_per_sample: _Length
    mean: list[float]
    std: list[Annotated[float, Field(gt=0)]]
    normalized: bool
    remarks: list[str]
    arrays: dict[str, _Array]

    @property
    def images(self) -> bool:
        """Whether the examples are images."""
        return self.arrays["train_x"].dtype == "|u1"

    @property
    def known(self) -> DatasetFacts:
        """The facts that the rest of the program gets."""
        return DatasetFacts(
            train_samples=self.train_samples,
            test_samples=self.test_samples,
            sample_shape=tuple(self.sample_shape),
            classes=self.classes,
            targets_per_sample=self.targets_per_sample,
        )

    def empty(self, name: str) -> np.ndarray[Any, np.dtype[Any]]:
        """Return an array of no examples, of the kind of an array."""
        stated = self.arrays[name]
        return np.empty((0, *stated.shape[1:]), np.dtype(stated.dtype))


def checked(fields: Mapping[str, Any], names: Iterable[str], name: str) -> Stated:
    """Return what a `facts.json` says of the arrays with these names.

    Raises:
        FileCorrupt: it says what cannot be; `name` is that of its folder.
    """
    file = f"{name}/{FACTS_FILE}"
    try:
        stated = Stated.model_validate(dict(fields))
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(map(str, first["loc"]))
        raise FileCorrupt(file, f"misses or garbles {place}: {first['msg']}") from None
    for field, fits in _agreement(stated, list(names)):
        if not fits:
            raise FileCorrupt(file, f"misses or garbles {field}")
    return stated


def _agreement(stated: Stated, names: list[str]) -> Iterable[tuple[str, bool]]:
    """Yield each thing that must agree with the rest, and whether it does."""
    for name in names:
        array = stated.arrays.get(name)
        part, _, kind = name.partition("_")
        count = stated.train_samples if part == "train" else stated.test_samples
        yield f"arrays.{name}", array is not None
        if array is None:
            return
        yield f"arrays.{name}.dtype", array.dtype in _DTYPES[kind]
        yield f"{part}_samples", array.shape[0] == count
        yield f"arrays.{name}.shape", array.shape[1:] == _one(stated, kind)
    width = stated.sample_shape[0] if stated.images else math.prod(stated.sample_shape)
    for field in ("mean", "std"):
        yield field, len(getattr(stated, field)) == width


def _one(stated: Stated, kind: str) -> list[int]:
    """Return the shape of one example, or of its target; the channels of images come last."""
    if kind == "y":
        return [] if stated.classes else [stated.targets_per_sample]
    channels, *others = stated.sample_shape
    return [*others, channels] if stated.images else stated.sample_shape
