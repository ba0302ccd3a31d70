"""A prepared dataset, and the facts that it states.

The folder is written once, by `__init__.py`, and never changed; here it is only read. Its name,
the dataset's *key*, determines every byte of it: see `array_folder.py`.
"""

import math
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from downpour.base.errors import FileCorrupt
from downpour.base.values import DatasetFacts
from downpour.learning.datasets.array_folder import FACTS_FILE, open_array_folder
from downpour.learning.datasets.digests import VerifiedBlocks

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


def checked(fields: Mapping[str, Any], name: str) -> Stated:
    """Return what the `facts.json` of a dataset says.

    A model that was exported brings the file along, so it may come from anybody. The file is
    corrupt if no preparation can have written it.
    """
    file = f"{name}/{FACTS_FILE}"
    try:
        stated = Stated.model_validate(dict(fields))
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(map(str, first["loc"]))
        raise FileCorrupt(file, f"misses or garbles {place}: {first['msg']}") from None
    for field, fits in _agreement(stated):
        if not fits:
            raise FileCorrupt(file, f"misses or garbles {field}")
    return stated


def _agreement(stated: Stated) -> Iterable[tuple[str, bool]]:
    """Yield each thing that must agree with the rest, and whether it does."""
    for name in ARRAYS:
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


_STRETCH_BYTES = 2**20
"""Eight of the files' blocks, because the last row of each stretch may reach into another block."""

ARRAYS = ("train_x", "train_y", "test_x", "test_y")


@dataclass(frozen=True, slots=True, kw_only=True)
class Examples:
    """Examples in a file mapped into memory; `verify` rows of `x` before you read them.

    `x` is uint8 images [n, h, w, c], channels last in spite of `sample_shape`, or float32 numbers
    [n, ...]. `y` is int64 class numbers [n] or float32 zeros and ones [n, k].
    """

    x: NDArray[Any]
    y: NDArray[Any]
    blocks: VerifiedBlocks | None = None

    def __len__(self) -> int:
        return len(self.x)

    def verify(self, rows: NDArray[np.int64] | None) -> None:
        """Verify some rows [n] of `x`, or all, if this process has not; raises FileCorrupt."""
        if self.blocks is None:
            return
        if rows is None:
            self.blocks.verify_all()
        else:
            self.blocks.verify(rows, self.x.nbytes // len(self.x))


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedDataset:
    """Training and test examples, and what normalizes them: (x - mean) / std.

    `mean` and `std` are in the units of `x`. Images (of values 0..255) have one number a channel.
    Anything else has one a feature, in the shape of a sample. They are 0 and 1 if `normalized`
    is false. `block_ends` are the indices that follow the training examples of each block, or None
    if the split does not depend on blocks. `remarks` say what is unusual about the examples, for
    people, one line each.
    """

    facts: DatasetFacts
    train: Examples
    test: Examples
    mean: NDArray[np.float64]
    std: NDArray[np.float64]
    normalized: bool = True
    remarks: tuple[str, ...] = ()
    block_ends: NDArray[np.int64] | None = None
    window_blocks = sys.maxsize  # an epoch mixes the whole shard, as rows are read one by one

    @property
    def images(self) -> bool:
        """Whether the examples are images."""
        return bool(self.train.x.dtype == np.uint8)

    @property
    def understood(self) -> str:
        """How the examples were understood, in one line for people."""
        facts = self.facts
        shape = " x ".join(map(str, facts.sample_shape))
        kind = f"{shape} {'pixels' if self.images else 'numbers'}"
        unit = "channel" if self.images else "feature"
        scale = f"normalized per {unit}" if self.normalized else "not normalized"
        wanted = f"{facts.classes} classes" if facts.classes else "zeros and ones"
        if not facts.classes:
            wanted = f"{facts.targets_per_sample} targets of {wanted}"
        counts = f"{facts.train_samples:,} training and {facts.test_samples:,} test examples"
        return f"{counts} of {kind}, {scale}; {wanted}"

    @property
    def labels(self) -> NDArray[np.int64] | None:
        """The class of each training example, or None where targets are not classes."""
        return self.train.y if self.facts.classes else None


def open_prepared(datasets_root: Path, key: str, *, by_blocks: bool = False) -> PreparedDataset:
    """Map a prepared dataset into memory; large examples are verified when they are first used.

    With `by_blocks`, it says which examples lie together.
    """
    opened = open_array_folder(datasets_root, key, ARRAYS, by_block=("train_x", "test_x"))
    dataset = _dataset(checked(opened.facts, key), opened.arrays, opened.blocks)
    return replace(dataset, block_ends=_block_ends(dataset.train.x)) if by_blocks else dataset


def _block_ends(x: NDArray[Any]) -> NDArray[np.int64]:
    """Return the ends of the ranges of rows that begin in the same megabyte."""
    stretches = np.arange(_STRETCH_BYTES, x.nbytes, _STRETCH_BYTES)
    return np.unique(np.append(-(-stretches // (x.nbytes // len(x))), len(x)))


def without_examples(stated: Mapping[str, Any], name: str) -> PreparedDataset:
    """Return a dataset of no examples, of the kind that a `facts.json` describes."""
    facts = checked(stated, name)
    kinds = {part: facts.arrays[part] for part in ARRAYS}
    try:
        empty = {part: np.empty((0, *one.shape[1:]), one.dtype) for part, one in kinds.items()}
        return _dataset(facts, empty, {})
    except ValueError as error:  # larger than numpy can count
        raise FileCorrupt(f"{name}/{FACTS_FILE}", f"misses or garbles {error}") from None


def _dataset(
    facts: Stated, arrays: Mapping[str, NDArray[Any]], blocks: Mapping[str, VerifiedBlocks]
) -> PreparedDataset:
    shape = (-1,) if facts.images else facts.sample_shape
    return PreparedDataset(
        facts=DatasetFacts(
            train_samples=facts.train_samples,
            test_samples=facts.test_samples,
            sample_shape=tuple(facts.sample_shape),
            classes=facts.classes,
            targets_per_sample=facts.targets_per_sample,
        ),
        train=Examples(x=arrays["train_x"], y=arrays["train_y"], blocks=blocks.get("train_x")),
        test=Examples(x=arrays["test_x"], y=arrays["test_y"], blocks=blocks.get("test_x")),
        mean=np.asarray(facts.mean, float).reshape(shape),
        std=np.asarray(facts.std, float).reshape(shape),
        normalized=facts.normalized,
        remarks=tuple(facts.remarks),
    )
