"""Datasets: decoded once into a shared folder, and mapped into memory by every worker.

`prepare` turns a spec's dataset into a folder of flat arrays and returns its name; `open_prepared`
maps that folder. `SOURCES` lists the datasets known by name; any other comes from a
`package.module:factory` on the allow-list. Importing these modules imports no torch;
only `images.py` uses it, to resize.
"""

from __future__ import annotations

import os
from pathlib import Path

from downpour.base.errors import SpecError, did_you_mean
from downpour.core.spec import Spec
from downpour.learning.datasets.arrays import Factory, Npz
from downpour.learning.datasets.built_in import Cifar10, Digits, IdxSource
from downpour.learning.datasets.images import Folder
from downpour.learning.datasets.preparation import prepared_key
from downpour.learning.datasets.prepared import Examples, PreparedDataset, open_prepared
from downpour.learning.datasets.source import DataSource

SOURCES: dict[str, DataSource] = {
    "digits": Digits(),
    "mnist": IdxSource("MNIST", mean=(0.1307,), std=(0.3081,)),
    "fashion-mnist": IdxSource("FashionMNIST", mean=(0.2860,), std=(0.3530,)),
    "kmnist": IdxSource("KMNIST"),
    "cifar10": Cifar10(),
    "npz": Npz(),
    "folder": Folder(),
}

__all__ = [
    "SOURCES",
    "Examples",
    "PreparedDataset",
    "check_source",
    "open_prepared",
    "prepare",
]


def prepare(
    spec: Spec, datasets_root: Path, data_dir: Path | None = None, begun_with: str | None = None
) -> str:
    """Decode the spec's dataset once; return the bare name of its folder under `datasets_root`.

    The name is the dataset's key: it follows from the content, so that equal keys are equal
    examples. Safe to call from many processes together: one decodes, the others wait; a second
    call returns at once.

    Args:
        spec: names the dataset.
        datasets_root: where prepared datasets are.
        data_dir: is searched for the files of well-known datasets before the cache
            `datasets_root/downloads`, and for a relative `data_path` before the working directory.
        begun_with: the key that an experiment goes on with. Its source is not needed while the
            folder is whole, and must come to the same key where it is not.
    """
    return prepared_key(_source(spec), spec, datasets_root, data_dir, begun_with)


def check_source(spec: Spec, data_dir: Path | None = None) -> None:
    """Check names, paths and the allow-list before anything starts."""
    if data_dir is not None and not os.path.isdir(data_dir):  # noqa: PTH112 - takes any name
        raise SpecError("data_dir", str(data_dir), "no such folder")
    _source(spec).check(spec, data_dir)
    if spec.dataset_options and spec.dataset in SOURCES:
        raise SpecError("dataset_options", spec.dataset_options, "only a factory has options")


def _source(spec: Spec) -> DataSource:
    source = Factory() if ":" in spec.dataset else SOURCES.get(spec.dataset)
    if source is None:
        known = f"known are {', '.join(SOURCES)} and package.module:factory"
        raise SpecError("dataset", spec.dataset, known + did_you_mean(spec.dataset, SOURCES))
    return source
