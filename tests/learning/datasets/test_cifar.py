"""CIFAR-10, from its binary version."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from downpour.base.errors import SpecError
from downpour.core.spec import Spec
from downpour.learning.datasets import open_prepared, prepare

CIFAR = Spec.make({"dataset": "cifar10"})


def write_batches(folder: Path, records: int = 4) -> None:
    """Write six small batch files whose red, green and blue are 10, 20 and 30."""
    folder.mkdir(parents=True)
    planes = np.repeat(np.array([10, 20, 30], np.uint8), 1024)
    for name in [*(f"data_batch_{n}" for n in range(1, 6)), "test_batch"]:
        content = b"".join(bytes([label % 10]) + planes.tobytes() for label in range(records))
        (folder / f"{name}.bin").write_bytes(content)


def test_records_become_color_images(tmp_path: Path) -> None:
    """Five batches make the training set; planes become channels at the end."""
    write_batches(tmp_path / "data" / "cifar-10-batches-bin")
    dataset = open_prepared(tmp_path, prepare(CIFAR, tmp_path, tmp_path / "data"))
    assert dataset.train.x.shape == (20, 32, 32, 3)
    assert dataset.train.x[7, 3, 5].tolist() == [10, 20, 30]
    assert dataset.test.y.tolist() == [0, 1, 2, 3]
    assert dataset.facts.sample_shape == (3, 32, 32)
    assert dataset.mean / 255 == pytest.approx([0.4914, 0.4822, 0.4465])


def test_a_cut_file_is_refused(tmp_path: Path) -> None:
    """A batch that ends inside a record is named."""
    write_batches(tmp_path / "cifar-10-batches-bin")
    path = tmp_path / "cifar-10-batches-bin" / "data_batch_3.bin"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(SpecError, match=r"data_batch_3\.bin"):
        prepare(CIFAR, tmp_path, tmp_path)


def test_without_files_or_torchvision_one_line_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The message names the binary version's folder."""
    monkeypatch.setitem(sys.modules, "torchvision.datasets.utils", None)
    with pytest.raises(SpecError, match=r"DOWNPOUR_DATA.*cifar-10-batches-bin/"):
        prepare(CIFAR, tmp_path)
