"""MNIST and its relatives, and CIFAR-10, in torchvision's layout."""

from __future__ import annotations

import pickle
import sys
from hashlib import md5
from pathlib import Path

import numpy as np
import pytest
from torchvision.datasets import CIFAR10

from downpour.base.errors import SpecError
from downpour.core.spec import Spec
from downpour.learning.datasets import open_prepared, prepare

from .conftest import IDX_STEMS, write_idx

MNIST = Spec.make({"dataset": "mnist"})
CIFAR = Spec.make({"dataset": "cifar10"})


def test_four_files_become_a_prepared_dataset(tmp_path: Path) -> None:
    """Images and labels come through unchanged, with MNIST's usual statistics."""
    arrays = write_idx(tmp_path / "data" / "MNIST")
    dataset = open_prepared(tmp_path, prepare(MNIST, tmp_path, tmp_path / "data"))
    assert np.array_equal(dataset.train.x[..., 0], arrays[IDX_STEMS[0]])
    assert np.array_equal(dataset.test.y, arrays[IDX_STEMS[3]])
    assert dataset.facts.sample_shape == (1, 28, 28)
    assert dataset.mean / 255 == pytest.approx([0.1307])
    assert dataset.std / 255 == pytest.approx([0.3081])


def test_the_cache_is_searched_after_the_data_folder(tmp_path: Path) -> None:
    """Files in `downloads` under the datasets are found when no data folder has them."""
    write_idx(tmp_path / "downloads" / "FashionMNIST")
    key = prepare(Spec.make({"dataset": "fashion-mnist"}), tmp_path, tmp_path / "elsewhere")
    assert open_prepared(tmp_path, key).facts.train_samples == 30


@pytest.mark.parametrize(("spec", "folder"), [(MNIST, "MNIST"), (CIFAR, "cifar-10-batches-py")])
def test_a_failed_download_ends_in_one_line_with_a_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spec: Spec, folder: str
) -> None:
    """The message names --data-dir, DOWNPOUR_DATA and the folder of the files."""
    monkeypatch.setitem(sys.modules, "torchvision", None)
    with pytest.raises(SpecError) as refusal:
        prepare(spec, tmp_path)
    assert refusal.value.field == "dataset"
    for part in ("--data-dir", "DOWNPOUR_DATA", f"holds {folder}/"):
        assert part in str(refusal.value)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("content", [b"", b"\0\0\x08", b"\0\0\x08\x01\0\0\0\x3cx"])
def test_a_damaged_file_is_refused_by_its_folder(tmp_path: Path, content: bytes) -> None:
    """Empty and cut files are not trained on."""
    write_idx(tmp_path / "MNIST")
    (tmp_path / "MNIST" / "raw" / "train-labels-idx1-ubyte").write_bytes(content)
    with pytest.raises(SpecError, match="dataset = 'mnist': MNIST/ cannot be read"):
        prepare(MNIST, tmp_path, tmp_path)


def write_batches(folder: Path, monkeypatch: pytest.MonkeyPatch, records: int = 4) -> None:
    """Write small batches whose red, green and blue are 10, 20 and 30; torchvision expects them."""
    folder.mkdir(parents=True)
    planes = np.repeat(np.array([10, 20, 30], np.uint8), 1024)
    batch = {"data": np.tile(planes, (records, 1)), "labels": list(range(records))}
    contents = {name: pickle.dumps(batch) for name, _ in CIFAR10.train_list + CIFAR10.test_list}
    contents["batches.meta"] = pickle.dumps({"label_names": [str(n) for n in range(10)]})
    for name, content in contents.items():
        (folder / name).write_bytes(content)
    sums = {name: md5(content).hexdigest() for name, content in contents.items()}  # noqa: S324
    for listed in ("train_list", "test_list"):
        named = [[name, sums[name]] for name, _ in getattr(CIFAR10, listed)]
        monkeypatch.setattr(CIFAR10, listed, named)
    monkeypatch.setattr(CIFAR10, "meta", {**CIFAR10.meta, "md5": sums["batches.meta"]})


def test_batches_become_color_images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Five batches make the training set; planes become channels at the end."""
    write_batches(tmp_path / "data" / "cifar-10-batches-py", monkeypatch)
    dataset = open_prepared(tmp_path, prepare(CIFAR, tmp_path, tmp_path / "data"))
    assert dataset.train.x.shape == (20, 32, 32, 3)
    assert dataset.train.x[7, 3, 5].tolist() == [10, 20, 30]
    assert dataset.test.y.tolist() == [0, 1, 2, 3]
    assert dataset.facts.sample_shape == (3, 32, 32)
    assert dataset.mean / 255 == pytest.approx([0.4914, 0.4822, 0.4465])


def test_a_batch_of_another_checksum_is_not_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It could be any pickle."""
    write_batches(tmp_path / "cifar-10-batches-py", monkeypatch)
    (tmp_path / "cifar-10-batches-py" / "data_batch_3").write_bytes(pickle.dumps({}))
    monkeypatch.setattr(pickle, "load", lambda *_, **__: pytest.fail("a pickle was opened"))
    with pytest.raises(SpecError, match=r"cifar-10-batches-py/ cannot be read: .*corrupted"):
        prepare(CIFAR, tmp_path, tmp_path)


def test_the_real_mnist_is_read(tmp_path: Path, real_data: Path) -> None:
    """60,000 and 10,000 images of ten classes; the first label is the well-known five."""
    dataset = open_prepared(tmp_path, prepare(MNIST, tmp_path, real_data))
    facts = dataset.facts
    assert (facts.train_samples, facts.test_samples, facts.classes) == (60_000, 10_000, 10)
    assert dataset.labels is not None
    assert dataset.labels[0] == 5
    assert float(dataset.train.x.mean()) == pytest.approx(float(dataset.mean[0]), rel=1e-3)
