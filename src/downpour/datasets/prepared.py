"""A prepared dataset: a folder of flat arrays that any number of processes map into memory.

The folder is written once, by `preparation`, and never changed; here it is only read. Its name, the
dataset's *key*, ends in a checksum of its `facts.json`, which holds the checksum of each array. So
the key determines every byte. Nothing in the folder is trusted: each process compares all checksums
before it maps the arrays for the first time, and reports what is missing, short or altered instead
of training on it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from downpour.errors import FileCorrupt, FileMissing
from downpour.store.directory import names_in, open_regular
from downpour.store.os_errors import reading
from downpour.values import DatasetFacts, is_bare_name

FACTS_FILE = "facts.json"
ARRAYS = ("train_x", "train_y", "test_x", "test_y")

_WINDOW_BYTES = 2**20  # stays in the processor's cache while it is hashed


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
    and one a feature, in the shape of a sample, of anything else; 0 and 1 where nothing is
    `normalized`. `remarks` say what is unusual about the examples, for people, one line each.
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
        FileCorrupt: `key` is no bare name, or a file is not what was prepared.
        SharedDirectoryError: a file cannot be read.
    """
    if not is_bare_name(key):
        raise FileCorrupt(key, "a dataset is named by a bare folder name")
    folder = datasets_root / key
    stated = read_facts(folder)
    try:
        mapped = {name: _mapped(folder, name, stated["arrays"][name]) for name in ARRAYS}
        facts = DatasetFacts(
            train_samples=int(stated["train_samples"]),
            test_samples=int(stated["test_samples"]),
            sample_shape=tuple(int(length) for length in stated["sample_shape"]),
            classes=int(stated["classes"]),
            targets_per_sample=int(stated["targets_per_sample"]),
        )
        mean, std = np.asarray(stated["mean"], float), np.asarray(stated["std"], float)
        remarks = tuple(map(str, stated["remarks"]))
    except (KeyError, TypeError, ValueError) as error:
        raise FileCorrupt(f"{key}/{FACTS_FILE}", f"misses or garbles {error}") from None
    images = mapped["train_x"].dtype == np.uint8
    shape = (-1,) if images else facts.sample_shape
    return PreparedDataset(
        facts=facts,
        train=Examples(x=mapped["train_x"], y=mapped["train_y"]),
        test=Examples(x=mapped["test_x"], y=mapped["test_y"]),
        mean=mean.reshape(shape),
        std=std.reshape(shape),
        normalized=bool(stated["normalized"]),
        remarks=remarks,
    )


def read_facts(folder: Path) -> dict[str, Any]:
    """Read the `facts.json` of a prepared folder.

    Raises:
        FileMissing: there is no such folder.
        FileCorrupt: the file has changed since the folder got its name.
        SharedDirectoryError: it cannot be read.
    """
    name = f"{folder.name}/{FACTS_FILE}"
    with _found(folder, FACTS_FILE), open(open_regular(folder / FACTS_FILE), "rb") as file:
        text = file.read()
    if not folder.name.endswith(f"-{facts_checksum(text)}"):
        raise FileCorrupt(name, "has changed since the dataset was prepared")
    stated = json.loads(text)
    if not isinstance(stated, dict):
        raise FileCorrupt(name, "should hold an object")
    return stated


def facts_checksum(text: bytes) -> str:
    """Return the checksum that the name of a folder with this `facts.json` ends in."""
    return xxhash.xxh3_64_hexdigest(text)


def described(array: NDArray[Any]) -> dict[str, Any]:
    """Return the entry of an array in `facts.json`."""
    content = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    return {
        "dtype": array.dtype.str,
        "shape": list(array.shape),
        "checksum": xxhash.xxh3_128_hexdigest(content.data),
    }


def _mapped(folder: Path, name: str, stated: dict[str, Any]) -> NDArray[Any]:
    path = folder / f"{name}.npy"
    shown = f"{folder.name}/{path.name}"
    try:
        with _found(folder, path.name):
            same = _identity(path)
            # Mode c: torch wants writable memory, and what is written there never reaches the file.
            array: np.memmap[Any, Any] = np.load(path, mmap_mode="c", allow_pickle=False)
            checksum = _checksum(path, array.offset, same)
    except (ValueError, EOFError) as error:
        raise FileCorrupt(shown, str(error)) from None
    actual = {"dtype": array.dtype.str, "shape": list(array.shape), "checksum": checksum}
    if actual != stated:
        raise FileCorrupt(shown, "has changed since the dataset was prepared")
    return array


@contextmanager
def _found(folder: Path, name: str) -> Iterator[None]:
    """Raise what goes wrong with a file of a prepared folder; see `store.os_errors`."""
    with reading(folder, name):
        try:
            yield
        except FileNotFoundError:
            # An NFS client caches that a file was missing, until it lists the folder.
            if folder.name in names_in(folder.parent):
                names_in(folder)
            raise FileMissing(f"{folder.name}/{name}") from None


def _identity(path: Path) -> tuple[int, int, int]:
    """Return an identity of a regular file, which a file that replaces it does not have."""
    with open(open_regular(path), "rb") as file:
        stat = os.fstat(file.fileno())
    return stat.st_ino, stat.st_size, stat.st_mtime_ns


@lru_cache(maxsize=256)
def _checksum(path: Path, offset: int, _same: tuple[int, int, int]) -> str:
    """Return the checksum of a file's bytes from `offset` on; cached by the file's identity.

    The file is read, not mapped, so that it does not count as the process's memory, and so that a
    failure of a file server is an exception here and not a fault in a mapped page.
    """
    digest = xxhash.xxh3_128()
    window = bytearray(_WINDOW_BYTES)
    with open(open_regular(path), "rb", buffering=0) as file:
        file.seek(offset)
        while count := file.readinto(window):
            digest.update(memoryview(window)[:count])
    return digest.hexdigest()
