"""A prepared dataset: a folder of flat arrays that any number of processes map into memory.

The folder is written once, by `preparation`, and never changed; here it is only read. Its name, the
dataset's *key*, determines every byte of it: see `array_folder`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from downpour.base.errors import FileCorrupt
from downpour.base.values import DatasetFacts
from downpour.learning.datasets.array_folder import FACTS_FILE, open_array_folder
from downpour.learning.datasets.stated import Stated, checked

ARRAYS = ("train_x", "train_y", "test_x", "test_y")


@dataclass(frozen=True, slots=True, kw_only=True)
class Examples:
    """Examples in a file mapped into memory.

    `x` is uint8 images [n, h, w, c], channels last in spite of `sample_shape`, or float32 numbers
    [n, ...]. `y` is int64 class numbers [n] or float32 zeros and ones [n, k].
    """

    x: NDArray[Any]
    y: NDArray[Any]

    def __len__(self) -> int:
        return len(self.x)


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedDataset:
    """Training and test examples, and what normalizes them: (x - mean) / std.

    `mean` and `std` are in the units of `x`. Images (of values 0..255) have one number a channel.
    Anything else has one a feature, in the shape of a sample. They are 0 and 1 if `normalized`
    is false. `remarks` say what is unusual about the examples, for people, one line each.
    """

    facts: DatasetFacts
    train: Examples
    test: Examples
    mean: NDArray[np.float64]
    std: NDArray[np.float64]
    normalized: bool = True
    remarks: tuple[str, ...] = ()

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


def open_prepared(datasets_root: Path, key: str) -> PreparedDataset:
    """Map a prepared dataset into memory; the first time in a process, all of it is verified.

    Raises:
        FileMissing: there is no such folder, or a file of it is missing.
        FileCorrupt: `key` is no bare name, or a file differs from the prepared one.
        SharedDirectoryError: a file cannot be read.
    """
    opened = open_array_folder(datasets_root, key, ARRAYS)
    return _dataset(checked(opened.facts, ARRAYS, key), opened.arrays)


def without_examples(stated: Mapping[str, Any], name: str) -> PreparedDataset:
    """Return a dataset of no examples, of the kind that a `facts.json` describes.

    Raises:
        FileCorrupt: no preparation can have written it; `name` is named.
    """
    facts = checked(stated, ARRAYS, name)
    try:
        return _dataset(facts, {part: facts.empty(part) for part in ARRAYS})
    except ValueError as error:  # larger than numpy can count
        raise FileCorrupt(f"{name}/{FACTS_FILE}", f"misses or garbles {error}") from None


def _dataset(facts: Stated, arrays: Mapping[str, NDArray[Any]]) -> PreparedDataset:
    shape = (-1,) if facts.images else facts.sample_shape
    return PreparedDataset(
        facts=facts.known,
        train=Examples(x=arrays["train_x"], y=arrays["train_y"]),
        test=Examples(x=arrays["test_x"], y=arrays["test_y"]),
        mean=np.asarray(facts.mean, float).reshape(shape),
        std=np.asarray(facts.std, float).reshape(shape),
        normalized=facts.normalized,
        remarks=tuple(facts.remarks),
    )
