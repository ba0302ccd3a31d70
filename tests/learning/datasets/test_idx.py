"""MNIST and its relatives, from IDX files."""

from __future__ import annotations

import gzip
import sys
from pathlib import Path

import numpy as np
import pytest

from downpour.base.errors import SpecError
from downpour.core.spec import Spec
from downpour.learning.datasets import open_prepared, prepare
from downpour.learning.datasets.built_in import read_idx

from .conftest import IDX_STEMS, idx_bytes, write_idx

MNIST = Spec.make({"dataset": "mnist"})


@pytest.mark.parametrize("zipped", [False, True])
def test_four_files_become_a_prepared_dataset(tmp_path: Path, *, zipped: bool) -> None:
    """Images and labels come through unchanged, zipped or not, with MNIST's usual statistics."""
    arrays = write_idx(tmp_path / "data" / "MNIST", zipped=zipped)
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


def test_without_files_or_torchvision_one_line_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The message names --data-dir, DOWNPOUR_DATA and the layout that is looked for."""
    monkeypatch.setitem(sys.modules, "torchvision.datasets", None)
    with pytest.raises(SpecError) as refusal:
        prepare(MNIST, tmp_path)
    assert refusal.value.field == "dataset"
    for part in ("--data-dir", "DOWNPOUR_DATA", "holds MNIST/"):
        assert part in str(refusal.value)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\0\0\x08",
        b"\0\0\x0d\x01\0\0\0\x01\0\0\0\0",
        idx_bytes(np.zeros((2, 3), np.uint8))[:-1],
        idx_bytes(np.zeros((2, 3), np.uint8)) + b"!",
    ],
)
def test_what_is_no_idx_file_is_refused(tmp_path: Path, content: bytes) -> None:
    """Empty, cut, of another type, short or long: all are named, none is trained on."""
    path = tmp_path / "labels"
    path.write_bytes(content)
    with pytest.raises(SpecError, match="labels"):
        read_idx(path)


def test_a_broken_zip_is_refused(tmp_path: Path) -> None:
    """A .gz file that is not compressed is named."""
    path = tmp_path / "labels.gz"
    path.write_bytes(b"not zipped")
    with pytest.raises(SpecError, match="cannot be read"):
        read_idx(path)


def test_a_damaged_zip_is_refused_wherever_the_damage_is(tmp_path: Path) -> None:
    """Cut or spoilt at any byte: refused by name, or the same bytes as before."""
    path = tmp_path / "labels.gz"
    labels = np.arange(60, dtype=np.uint8)
    whole = gzip.compress(idx_bytes(labels), mtime=0)
    spoilt = [
        whole[:place] + bytes([byte ^ 0xFF]) + whole[place + 1 :]
        for place, byte in enumerate(whole)
    ]
    refused = set()
    for content in [*spoilt, *(whole[:length] for length in range(len(whole)))]:
        path.write_bytes(content)
        try:
            assert np.array_equal(read_idx(path), labels)
        except SpecError as refusal:
            refused.add(str(refusal.value))
    assert refused == {"labels.gz"}


def test_a_head_that_promises_too_much_takes_no_memory(tmp_path: Path) -> None:
    """64 exabytes do not fit into any machine; a zipped file need not be large for that."""
    path = tmp_path / "images.gz"
    path.write_bytes(gzip.compress(b"\0\0\x08\x02" + b"\xff" * 8))
    with pytest.raises(SpecError, match=r"images\.gz.*PB of memory"):
        read_idx(path)


def test_the_real_mnist_is_read(tmp_path: Path, real_data: Path) -> None:
    """60,000 and 10,000 images of ten classes; the first label is the well-known five."""
    dataset = open_prepared(tmp_path, prepare(MNIST, tmp_path, real_data))
    facts = dataset.facts
    assert (facts.train_samples, facts.test_samples, facts.classes) == (60_000, 10_000, 10)
    assert dataset.labels is not None
    assert dataset.labels[0] == 5
    assert float(dataset.train.x.mean()) == pytest.approx(float(dataset.mean[0]), rel=1e-3)
