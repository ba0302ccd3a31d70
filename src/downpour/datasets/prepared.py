"""A prepared dataset: a folder of flat arrays that any number of processes map into memory.

The folder is written once, by `preparation`, and never changed; here it is only read. Nothing in
it is trusted: what is missing, short or of another shape than `facts.json` says is reported as
such, not trained on.
"""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from downpour.errors import FileCorrupt, FileMissing, StoreError
from downpour.store.directory import names_in
from downpour.values import DatasetFacts, is_bare_name

FACTS_FILE = "facts.json"
ARRAYS = ("train_x", "train_y", "test_x", "test_y")


@dataclass(frozen=True, slots=True, kw_only=True)
class Examples:
    """Examples in a file mapped into memory.

    `x` is uint8 images [n, h, w, c], channels last whatever `sample_shape` says, or float32
    numbers [n, ...]; `y` is int64 class numbers [n] or float32 zeros and ones [n, k].
    """

    x: NDArray[Any]
    y: NDArray[Any]

    def __len__(self) -> int:
        return len(self.x)


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedDataset:
    """Training and test examples, and what normalizes them: (x - mean) / std.

    `mean` and `std` are in the units of `x`: one number a channel of images (of values 0..255),
    and one a feature, in the shape of a sample, of anything else.
    """

    facts: DatasetFacts
    train: Examples
    test: Examples
    mean: NDArray[np.float64]
    std: NDArray[np.float64]

    @property
    def images(self) -> bool:
        """Whether the examples are images."""
        return bool(self.train.x.dtype == np.uint8)

    @property
    def labels(self) -> NDArray[np.int64] | None:
        """The class of each training example, or None where targets are not classes."""
        return self.train.y if self.facts.classes else None


def open_prepared(datasets_root: Path, key: str) -> PreparedDataset:
    """Map a prepared dataset into memory; reads no example.

    Raises:
        FileMissing: there is no such folder, or a file of it is missing.
        FileCorrupt: `key` is no bare name, or a file is not what was prepared.
    """
    if not is_bare_name(key):
        raise FileCorrupt(key, "a dataset is named by a bare folder name")
    folder = datasets_root / key
    stated = read_facts(folder)
    mapped = {name: _mapped(folder, name) for name in ARRAYS}
    try:
        facts = DatasetFacts(
            train_samples=int(stated["train_samples"]),
            test_samples=int(stated["test_samples"]),
            sample_shape=tuple(int(length) for length in stated["sample_shape"]),
            classes=int(stated["classes"]),
            targets_per_sample=int(stated["targets_per_sample"]),
        )
        mean, std = np.asarray(stated["mean"], float), np.asarray(stated["std"], float)
        as_stated = stated["arrays"] == {name: described(mapped[name]) for name in ARRAYS}
    except (KeyError, TypeError, ValueError) as error:
        raise FileCorrupt(f"{key}/{FACTS_FILE}", f"misses or garbles {error}") from None
    if not as_stated:
        raise FileCorrupt(key, f"its arrays are not those that its {FACTS_FILE} describes")
    images = mapped["train_x"].dtype == np.uint8
    shape = (-1,) if images else facts.sample_shape
    return PreparedDataset(
        facts=facts,
        train=Examples(x=mapped["train_x"], y=mapped["train_y"]),
        test=Examples(x=mapped["test_x"], y=mapped["test_y"]),
        mean=mean.reshape(shape),
        std=std.reshape(shape),
    )


def read_facts(folder: Path) -> dict[str, Any]:
    """Read what a prepared folder says of itself.

    Raises:
        FileMissing: there is no such folder.
        FileCorrupt: it cannot be understood.
    """
    name = f"{folder.name}/{FACTS_FILE}"
    try:
        stated = json.loads((folder / FACTS_FILE).read_text(encoding="utf-8"))
    except FileNotFoundError:
        with suppress(StoreError):
            names_in(folder)  # so that the next look asks the file server
        raise FileMissing(name) from None
    except (OSError, ValueError) as error:
        raise FileCorrupt(name, str(error)) from None
    if not isinstance(stated, dict):
        raise FileCorrupt(name, "should hold an object")
    return stated


def described(array: NDArray[Any]) -> dict[str, Any]:
    """Return what `facts.json` says of an array."""
    return {"dtype": array.dtype.str, "shape": list(array.shape)}


def _mapped(folder: Path, name: str) -> NDArray[Any]:
    path = folder / f"{name}.npy"
    try:
        # Mode c: torch wants writable memory, and what is written there never reaches the file.
        array: NDArray[Any] = np.load(path, mmap_mode="c", allow_pickle=False)
    except FileNotFoundError:
        raise FileMissing(f"{folder.name}/{path.name}") from None
    except (OSError, ValueError, EOFError) as error:
        raise FileCorrupt(f"{folder.name}/{path.name}", str(error)) from None
    return array
