"""Large arrays of a prepared dataset, which are verified block by block."""

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from downpour.base.errors import FileCorrupt, FileMissing, StoreError
from downpour.core.spec import Spec
from downpour.core.splitters import divide
from downpour.learning.datasets import array_folder, digests, open_prepared, prepare, prepared
from downpour.learning.datasets.array_folder import damage
from downpour.learning.datasets.digests import VerifiedBlocks, block_digests, checksum_of, identity
from downpour.learning.datasets.prepared import ARRAYS
from downpour.learning.tasks.agreement import open_data
from downpour.learning.tasks.batches import Feed
from downpour.learning.training.epoch_order import batch_order
from tests.learning.datasets.conftest import npz_spec

ONE, BLOCK = 128, 1024  # bytes of an example, and of a block, which holds eight


@pytest.fixture
def spec(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Spec:
    """The spec of 64 training and 16 test examples, which count as large."""
    monkeypatch.setattr(array_folder, "WHOLE_BYTES", BLOCK)
    monkeypatch.setattr(digests, "BLOCK_BYTES", BLOCK)
    monkeypatch.setattr(digests, "_AT_ONCE", 3)
    monkeypatch.setattr(prepared, "_STRETCH_BYTES", BLOCK)
    x = np.random.default_rng(0).random((80, ONE // 4), np.float32)
    return npz_spec(tmp_path, x=x, y=np.arange(80) % 2).replace(device="cpu")


@pytest.fixture
def key(tmp_path: Path, spec: Spec) -> str:
    """The prepared dataset."""
    return prepare(spec, tmp_path)


def flip(path: Path, from_the_end: int) -> None:
    """Flip a bit of a file in place."""
    content = bytearray(path.read_bytes())
    content[-from_the_end] ^= 1
    path.write_bytes(content)


def test_a_training_goes_on_until_it_needs_an_altered_block(
    tmp_path: Path, spec: Spec, key: str
) -> None:
    """The error names the block; a manager, which verifies all of them, finds it at the start."""
    flip(tmp_path / key / "train_x.npy", 1)
    dataset = open_prepared(tmp_path, key)
    feed = Feed(dataset, dataset.train, spec)
    feed.__getitems__([0, 55])
    with pytest.raises(FileCorrupt, match=r"train_x\.npy: block 7 has changed"):
        feed.__getitems__([3, 56])
    assert "block 7 has changed" in str(damage(tmp_path, key, ARRAYS))


def test_shards_may_have_whole_blocks(tmp_path: Path, spec: Spec, key: str) -> None:
    """A host then fetches no block for the rows of others; each shard is shuffled as a whole."""
    spec = spec.model_copy(update={"order": "blocks"})
    data = open_data(spec, tmp_path, key)
    shards, _ = divide(spec, data.labels, 64, 4, data.block_ends)
    assert [len(np.unique(shard // (BLOCK // ONE))) for shard in shards] == [2, 2, 2, 2]
    order = batch_order(spec, shards[0], None, 0, 0, None, data.block_ends, data.window_blocks)
    assert np.array_equal(order, batch_order(spec, shards[0], None, 0, 0))
    assert open_data(Spec(), tmp_path, key).block_ends is None


def test_columns_on_a_device_are_verified_before_they_move(
    tmp_path: Path, spec: Spec, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of them, because later batches are not read from the file."""
    monkeypatch.setattr("downpour.learning.tasks.batches.free_bytes", lambda _: 2**30)
    flip(tmp_path / key / "train_x.npy", 1)
    dataset = open_prepared(tmp_path, key)
    feed = Feed(dataset, dataset.train, spec.model_copy(update={"device": "meta"}))
    with pytest.raises(FileCorrupt, match="block 7"):
        feed.__getitems__([0])


@pytest.mark.parametrize("altered", ["cut", "flipped"])
def test_digests_are_verified_before_they_verify(tmp_path: Path, key: str, altered: str) -> None:
    """An altered block and its altered digest would agree. Without digests, all is read at once."""
    path = tmp_path / key / "train_x.digests"
    if altered == "cut":
        path.write_bytes(path.read_bytes()[:-16])
    else:
        flip(path, 1)
    with pytest.raises(FileCorrupt, match=r"train_x\.npy"):
        open_prepared(tmp_path, key)
    path.unlink()
    os.mkfifo(path)  # which a reader would wait for
    with pytest.raises(StoreError, match=r"train_x\.digests"):
        open_prepared(tmp_path, key)
    path.unlink()
    open_prepared(tmp_path, key)
    flip(tmp_path / key / "train_x.npy", 1)
    with pytest.raises(FileCorrupt, match="has changed"):
        open_prepared(tmp_path, key)


def test_a_file_that_was_replaced_verifies_nothing(tmp_path: Path, key: str) -> None:
    """The process has mapped the file before, so the other one's blocks prove nothing about it."""
    dataset = open_prepared(tmp_path, key)
    path = tmp_path / key / "train_x.npy"
    copy = path.with_name("copy")
    copy.write_bytes(path.read_bytes())
    copy.replace(path)
    with pytest.raises(FileCorrupt, match="has been replaced"):
        dataset.train.verify(np.array([0]))
    path.unlink()
    with pytest.raises(FileMissing, match=r"train_x\.npy"):
        dataset.train.verify(np.array([0]))


@given(row_bytes=st.integers(1, 40), chosen=st.lists(st.integers(0, 24), max_size=6))
def test_rows_read_exactly_the_blocks_that_hold_them(
    tmp_path_factory: pytest.TempPathFactory, row_bytes: int, chosen: list[int]
) -> None:
    """However rows and blocks overlap, and each block once."""
    content = (bytes(range(256)) * 4)[: 25 * row_bytes]
    path = tmp_path_factory.mktemp("some") / "array"
    path.write_bytes(b"head" + content)
    read: list[int] = []
    filled = digests._filled

    def noted(file: Any, window: bytearray) -> int:
        read.append(file.tell())
        return filled(file, window)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(digests, "BLOCK_BYTES", 16)
        patch.setattr(digests, "_filled", noted)
        beside = path.with_suffix(".digests")
        beside.write_bytes(block_digests(memoryview(content)))
        some = VerifiedBlocks(path, 4, identity(path))
        assert some.checksum(beside) == checksum_of(beside.read_bytes())
        for _ in range(2):
            some.verify(np.array(chosen, np.int64), row_bytes)
    held = {byte // 16 for row in chosen for byte in range(row * row_bytes, (row + 1) * row_bytes)}
    assert sorted(read) == sorted(4 + 16 * block for block in held)


def test_a_process_verifies_once_whatever_it_opens_again(
    tmp_path: Path, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a manager has looked through at the start, its evaluations read no second time."""
    assert damage(tmp_path, key, ARRAYS) is None
    dataset = open_prepared(tmp_path, key)
    monkeypatch.setattr(os, "open", None)
    dataset.test.verify(None)
    dataset.train.verify(np.arange(64))
