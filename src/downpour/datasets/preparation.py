"""Decoding a dataset once, into a folder that all workers map into memory.

The folder's name follows from everything that determines its content, so a second preparation of
the same finds it and returns at once, and a changed source gets a folder of its own. The folder is
made beside its place under a lock, flushed to the disk, and renamed into place: it is there whole
or not at all, however many processes start together or die in between.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock
from numpy.typing import NDArray

from downpour.datasets.decoding import Decoded, decoded
from downpour.datasets.prepared import ARRAYS, FACTS_FILE, described, read_facts
from downpour.datasets.source import Found, Source
from downpour.errors import SharedDirectoryError, SpecError
from downpour.spec import Spec
from downpour.store.directory import names_in
from downpour.store.publish import sync_directory

# Part of every name; to be raised with any change of what is written for the same source.
FORMAT = 1
DOWNLOADS = "downloads"


def prepared_key(
    source: Source, spec: Spec, datasets_root: Path, data_dir: Path | None = None
) -> str:
    """Return the name of the prepared folder under `datasets_root`, making it where it is missing.

    Raises:
        SpecError: the source's files are nowhere, or the spec does not fit what they hold.
        SharedDirectoryError: the folder cannot be written.
    """
    found = source.find(spec, data_dir, datasets_root / DOWNLOADS)
    key = _key(spec, found)
    folder = datasets_root / key
    if not folder.is_dir():
        try:
            datasets_root.mkdir(parents=True, exist_ok=True)
            with FileLock(datasets_root / f".{key}.lock"):
                # An NFS client that asked too early believes that there is none, until it lists.
                if key not in names_in(datasets_root):
                    _make(folder, decoded(found.read(), spec))
        except OSError as error:
            reason = f"dataset {spec.dataset} cannot be written ({error.strerror or error})"
            raise SharedDirectoryError(datasets_root, reason) from error
    if spec.flip and not read_facts(folder).get("images"):
        raise SpecError("flip", value=True, accepted=f"dataset '{spec.dataset}' has no images")
    return key


def _key(spec: Spec, found: Found) -> str:
    determines = {
        "format": FORMAT,
        "dataset": spec.dataset,
        "options": spec.dataset_options,
        "image_size": spec.image_size,
        "limits": [spec.train_limit, spec.test_limit],
        "source": found.fingerprint,
    }
    digest = sha256(json.dumps(determines, sort_keys=True).encode()).hexdigest()[:16]
    readable = re.sub(r"[^A-Za-z0-9]+", "-", spec.dataset).strip("-")[:64] or "dataset"
    return f"{readable}-{digest}"


def _make(folder: Path, content: Decoded) -> None:
    partial = folder.with_name(f".{folder.name}.partial")
    # The lock is ours, so one that is already there was left by a process that died.
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir()
    try:
        for name in ARRAYS:
            _write(partial / f"{name}.npy", getattr(content, name))
        (partial / FACTS_FILE).write_text(_facts_text(content), encoding="utf-8")
        for path in partial.iterdir():
            _flush(path)
        sync_directory(partial)
        partial.rename(folder)
        sync_directory(folder.parent)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _facts_text(content: Decoded) -> str:
    shape = content.train_x.shape[1:]
    images = content.train_x.dtype == np.uint8
    facts = {
        "train_samples": len(content.train_x),
        "test_samples": len(content.test_x),
        "sample_shape": [shape[2], *shape[:2]] if images else list(shape),
        "classes": content.classes,
        "targets_per_sample": 1 if content.classes else content.train_y.shape[1],
        "images": bool(images),
        "mean": content.mean,
        "std": content.std,
        "arrays": {name: described(getattr(content, name)) for name in ARRAYS},
    }
    return json.dumps(facts, indent=1)


def _write(path: Path, array: NDArray[Any]) -> None:
    """Do what `np.save` does, which hides why a write failed."""
    array = np.ascontiguousarray(array)
    header = np.lib.format.header_data_from_array_1_0(array)
    with path.open("wb") as file:
        np.lib.format.write_array_header_1_0(file, header)
        file.write(array.reshape(-1).view(np.uint8).data)


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
