"""Preparing a dataset once, however many ask for it."""

from __future__ import annotations

import errno
import os
import stat
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from downpour.datasets import prepare
from downpour.datasets.preparation import _write, prepared_key
from downpour.datasets.source import Arrays, Found
from downpour.errors import SharedDirectoryError, SpecError
from downpour.spec import Spec


class Counted:
    """A source that counts how often it is decoded."""

    def __init__(self, fingerprint: str = "one", failures: int = 0) -> None:
        self.reads = 0
        self.failures = failures
        self.fingerprint = fingerprint

    def check(self, spec: Spec, data_dir: Path | None) -> None:
        """Accept all."""

    def find(self, spec: Spec, data_dir: Path | None, downloads: Path) -> Found:
        """Find what was given."""
        del spec, data_dir, downloads
        return Found(fingerprint=(self.fingerprint,), read=self._read)

    def _read(self) -> Arrays:
        self.reads += 1
        if self.reads <= self.failures:
            raise RuntimeError("power cut")
        x, y = np.zeros((10, 2)), np.arange(10) % 2
        return Arrays(train_x=x, train_y=y, test_x=x, test_y=y)


def test_ten_that_start_together_decode_once(tmp_path: Path) -> None:
    """One decodes, the others wait and find the same folder."""
    source = Counted()
    with ThreadPoolExecutor(10) as pool:
        keys = set(pool.map(lambda _: prepared_key(source, Spec.make({}), tmp_path), range(10)))
    assert len(keys) == 1
    assert source.reads == 1


def test_what_changes_the_content_changes_the_name(tmp_path: Path) -> None:
    """Limits, sizes and the source's files count; what only steers training does not."""
    base = prepared_key(Counted(), Spec.make({}), tmp_path)
    assert (
        prepared_key(Counted(), Spec.make({"seed": 3, "epochs": 9, "batch_size": 7}), tmp_path)
        == base
    )
    assert prepared_key(Counted(), Spec.make({"train_limit": 5}), tmp_path) != base
    assert prepared_key(Counted("another"), Spec.make({}), tmp_path) != base


def test_a_changed_file_is_another_dataset(tmp_path: Path) -> None:
    """A file's time of change is part of the name: an old folder is never taken for it."""
    path = tmp_path / "set.npz"
    np.savez(path, x=np.ones((10, 2)), y=np.arange(10) % 2)
    spec = Spec.make({"dataset": "npz", "data_path": str(path)})
    before = prepare(spec, tmp_path / "datasets")
    os.utime(path, (1, 1))
    assert prepare(spec, tmp_path / "datasets") != before


def test_a_preparation_that_fails_leaves_nothing_behind(tmp_path: Path) -> None:
    """The next one starts from the beginning, also where a dead process left its half."""
    source = Counted(failures=1)
    with pytest.raises(RuntimeError):
        prepared_key(source, Spec.make({}), tmp_path)
    assert not [path for path in tmp_path.iterdir() if path.is_dir()]
    key = prepared_key(Counted(), Spec.make({}), tmp_path / "other")
    (tmp_path / f".{key}.partial").mkdir()
    assert prepared_key(source, Spec.make({}), tmp_path) == key
    assert not (tmp_path / f".{key}.partial").exists()


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    """A file where the folder should be is the shared directory's fault, in one line."""
    (tmp_path / "datasets").write_text("in the way")
    with pytest.raises(SharedDirectoryError, match="cannot be written"):
        prepared_key(Counted(), Spec.make({}), tmp_path / "datasets")


def test_a_machine_that_asked_too_early_does_not_decode_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An NFS client goes on believing that the folder is missing while another one makes it."""
    key = prepared_key(Counted(), Spec.make({}), tmp_path)
    late = Counted()
    is_dir = Path.is_dir
    monkeypatch.setattr(Path, "is_dir", lambda path: path.name != key and is_dir(path))
    assert prepared_key(late, Spec.make({}), tmp_path) == key
    assert late.reads == 0


def test_a_file_system_that_syncs_no_directories_is_taken_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with everything else that is published."""
    sync = os.fsync

    def files_only(descriptor: int) -> None:
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", files_only)
    assert (tmp_path / prepared_key(Counted(), Spec.make({}), tmp_path)).is_dir()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no device that is always full")
def test_a_full_disk_is_told_as_that(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not as so many bytes that were not written; nothing stays, and later it works."""
    opening = Path.open

    def full(path: Path, *args: Any) -> Any:
        return opening(Path("/dev/full") if path.suffix == ".npy" else path, *args)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "open", full)
        with pytest.raises(SharedDirectoryError, match="No space left on device"):
            prepared_key(Counted(), Spec.make({}), tmp_path)
    assert not [path for path in tmp_path.iterdir() if path.is_dir()]
    prepared_key(Counted(), Spec.make({}), tmp_path)


@given(
    array=arrays(
        st.sampled_from(["u1", "<f4", "<i8"]),
        st.lists(st.integers(0, 4), min_size=1, max_size=4).map(tuple),
    ),
    turned=st.booleans(),
)
def test_arrays_are_written_as_numpy_writes_them(array: Any, *, turned: bool) -> None:
    """Whatever their shape and their order in memory."""
    array = array.T if turned else array
    with tempfile.TemporaryDirectory() as folder:
        _write(Path(folder) / "array.npy", array)
        read = np.load(Path(folder) / "array.npy", allow_pickle=False)
    assert (read.dtype, read.shape) == (array.dtype, array.shape)
    assert read.tobytes() == array.tobytes()


def test_flipping_needs_images(tmp_path: Path) -> None:
    """Refused when the dataset is prepared, whether it was there before or not."""
    for _ in range(2):
        with pytest.raises(SpecError, match="no images"):
            prepared_key(Counted(), Spec.make({"flip": True}), tmp_path)
