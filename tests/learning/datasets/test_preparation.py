"""Preparing a dataset once, however many ask for it."""

import errno
import os
import shutil
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

from downpour.base.errors import SharedDirectoryError, SpecError
from downpour.core.spec import Spec
from downpour.learning.datasets import open_prepared, prepare
from downpour.learning.datasets.array_folder import _write, write_array_folder
from downpour.learning.datasets.source import Arrays, SourceFiles


class Counted:
    """A source with a fingerprint and one level that counts how often it is decoded."""

    def __init__(
        self,
        fingerprint: str = "one",
        failures: int = 0,
        level: float = 0.0,
        others: tuple[Path, ...] | None = (),
    ) -> None:
        self.looks = 0
        self.reads = 0
        self.failures = failures
        self.fingerprint = fingerprint
        self.level = level
        self.others = others

    def check(self, spec: Spec, data_dir: Path | None) -> None:
        """Accept all."""

    def find(self, spec: Spec, data_dir: Path | None, downloads: Path) -> SourceFiles:
        del spec, data_dir, downloads
        self.looks += 1
        return SourceFiles(fingerprint=(self.fingerprint,), read=self._read)

    def _read(self) -> Arrays:
        self.reads += 1
        if self.reads <= self.failures:
            raise RuntimeError("power cut")
        x, y = np.full((10, 2), self.level), np.arange(10) % 2
        return Arrays(train_x=x, train_y=y, test_x=x, test_y=y, files=self.others)


class Gone(Counted):
    """A source whose files are not on this machine."""

    def find(self, spec: Spec, data_dir: Path | None, downloads: Path) -> SourceFiles:
        del spec, data_dir, downloads
        raise SpecError("data_path", "set.npz", "no such file or folder")


def made(root: Path, source: Counted | None = None, begun_with: str | None = None) -> str:
    """Prepare a dataset, by default of a source that counts; return its key."""
    return prepare(Spec.make({}), root, source=source or Counted(), begun_with=begun_with)


def folders(root: Path) -> list[Path]:
    """Return the folders of prepared datasets, whole or not."""
    return [path for path in root.iterdir() if path.is_dir() and path.name != "sources"]


def flipped(path: Path) -> bytes:
    """Alter one bit in the middle of a file; returns what it holds now."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    return bytes(content)


def test_ten_that_start_together_decode_once(tmp_path: Path) -> None:
    """One decodes, the others wait and find the same folder."""
    source = Counted()
    with ThreadPoolExecutor(10) as pool:
        keys = set(pool.map(lambda _: made(tmp_path, source), range(10)))
    assert len(keys) == 1
    assert source.reads == 1


def test_other_content_has_another_name(tmp_path: Path) -> None:
    """Limits and the examples themselves count; what only steers training does not."""
    base = made(tmp_path)
    other = Spec.make({"seed": 3, "epochs": 9, "batch_size": 7})
    assert prepare(other, tmp_path, source=Counted()) == base
    assert prepare(Spec.make({"train_limit": 5}), tmp_path, source=Counted()) != base
    assert made(tmp_path, Counted("another", level=1.0)) != base


def test_the_same_examples_from_another_place_are_the_same_dataset(tmp_path: Path) -> None:
    """A copy of the files on another machine leads to the folder that is there."""
    base = made(tmp_path)
    copy = Counted("elsewhere")
    assert made(tmp_path, copy) == base
    assert copy.reads == 1
    assert made(tmp_path, copy) == base
    assert copy.reads == 1


def test_a_changed_file_is_another_dataset(tmp_path: Path) -> None:
    """A file is read again when its size or time of change differ, and named by what it holds."""
    path = tmp_path / "set.npz"
    spec = Spec.make({"dataset": "npz", "data_path": str(path)})
    (tmp_path / "datasets").mkdir()
    np.savez(path, x=np.ones((10, 2)), y=np.arange(10) % 2)
    before = prepare(spec, tmp_path / "datasets")
    os.utime(path, (1, 1))
    assert prepare(spec, tmp_path / "datasets") == before
    np.savez(path, x=np.zeros((10, 2)), y=np.arange(10) % 2)
    assert prepare(spec, tmp_path / "datasets") != before


def test_an_intact_folder_needs_no_source(tmp_path: Path) -> None:
    """A manager that resumes on a machine without the files opens the folder that is there."""
    key = made(tmp_path)
    nowhere = Gone()
    assert made(tmp_path, nowhere, key) == key
    assert nowhere.looks == 0


def test_a_folder_that_is_gone_is_made_again_from_the_same_source(tmp_path: Path) -> None:
    """From its source, which must come to the same examples."""
    key = made(tmp_path)
    shutil.rmtree(tmp_path / key)
    assert made(tmp_path, begun_with=key) == key
    open_prepared(tmp_path, key)
    shutil.rmtree(tmp_path / key)
    changed = Counted("two", level=1.0)
    with pytest.raises(SpecError, match=f"has changed since the experiment began with {key}"):
        made(tmp_path, changed, key)


def test_a_folder_that_is_gone_with_its_source_is_told_as_that(tmp_path: Path) -> None:
    """One line names the source that is missing, and why it is needed."""
    key = made(tmp_path)
    shutil.rmtree(tmp_path / key)
    wanted = (
        f"data_path = 'set.npz': no such file or folder; the manager needs it again because {key}"
    )
    with pytest.raises(SpecError, match=wanted):
        made(tmp_path, Gone(), key)


@pytest.mark.parametrize("name", ["train_x.npy", "facts.json"])
def test_altered_bytes_are_made_good_from_the_source(tmp_path: Path, name: str) -> None:
    """What was altered is kept aside, for others may have mapped it."""
    key = made(tmp_path)
    altered = flipped(tmp_path / key / name)
    assert made(tmp_path) == key
    open_prepared(tmp_path, key)
    assert (tmp_path / f".{key}.damaged" / name).read_bytes() == altered


def test_other_files_that_were_read_are_watched(tmp_path: Path) -> None:
    """What a source has read besides its own files is decoded again when one of them changes."""
    table = tmp_path / "table.csv"
    table.write_text("1,2")
    source = Counted(others=(table,))
    (tmp_path / "datasets").mkdir()
    for _ in range(2):
        made(tmp_path / "datasets", source)
    assert source.reads == 1
    table.write_text("1,2\n3,4")
    made(tmp_path / "datasets", source)
    assert source.reads == 2


def test_a_source_that_does_not_say_what_it_read_is_asked_each_time(tmp_path: Path) -> None:
    """And what it returns decides whether it is the same dataset."""
    source = Counted(others=None)
    before = made(tmp_path, source)
    assert made(tmp_path, source) == before
    source.level = 1.0
    assert made(tmp_path, source) != before
    assert source.reads == 3


@pytest.mark.parametrize(
    ("error", "accepted"),
    [
        (OSError(errno.EIO, "Input/output error", "/data/a.png"), "/data/a.png: Input/output"),
        (MemoryError(), "does not fit into the memory"),
    ],
)
def test_a_source_that_cannot_be_read_is_not_blamed_on_the_shared_directory(
    tmp_path: Path, error: Exception, accepted: str
) -> None:
    """The line names the dataset and its file."""

    class Unreadable(Counted):
        def _read(self) -> Arrays:
            raise error

    with pytest.raises(SpecError, match=accepted):
        made(tmp_path, Unreadable())


def test_a_preparation_that_fails_leaves_nothing_behind(tmp_path: Path) -> None:
    """The next one starts from the beginning, also where a dead process left its half."""
    source = Counted(failures=1)
    with pytest.raises(RuntimeError):
        made(tmp_path, source)
    assert not folders(tmp_path)
    (tmp_path / "other").mkdir()
    key = made(tmp_path / "other")
    (tmp_path / f".{key}.partial").mkdir()
    assert made(tmp_path, source) == key
    assert not (tmp_path / f".{key}.partial").exists()


def test_a_folder_that_is_away_is_not_made_anew(tmp_path: Path) -> None:
    """Workers would not find what was prepared below the point of a missing mount."""
    with pytest.raises(SharedDirectoryError, match="no such folder"):
        made(tmp_path / "datasets")
    with pytest.raises(FileNotFoundError):
        write_array_folder(tmp_path / "datasets", "x", {}, {"a": np.zeros(3)})
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    """A file where the folder should be is the shared directory's fault, in one line."""
    (tmp_path / "datasets").write_text("in the way")
    with pytest.raises(SharedDirectoryError, match="not a folder"):
        made(tmp_path / "datasets")


def test_a_machine_that_asked_too_early_does_not_decode_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An NFS client goes on believing that the folder is missing while another one makes it."""
    key = made(tmp_path)
    late = Counted()
    seen: set[str] = set()
    listing, opening = os.listdir, os.open

    def noted(path: Path) -> list[str]:
        seen.add(str(path))
        return listing(path)

    def as_a_client_sees_it(path: Path, flags: int, mode: int = 0o777) -> int:
        if Path(path).suffix == ".json" and str(Path(path).parent) not in seen:
            raise FileNotFoundError(errno.ENOENT, "no such file", str(path))
        return opening(path, flags, mode)

    monkeypatch.setattr(os, "listdir", noted)
    monkeypatch.setattr(os, "open", as_a_client_sees_it)
    assert made(tmp_path, late) == key
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
    assert (tmp_path / made(tmp_path)).is_dir()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no device that is always full")
def test_a_full_disk_is_told_as_that(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the reason of the system, not a count of bytes; no file stays, and later it works."""
    opening = Path.open

    def full(path: Path, *args: Any) -> Any:
        return opening(Path("/dev/full") if path.suffix == ".npy" else path, *args)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "open", full)
        with pytest.raises(SharedDirectoryError, match="No space left on device"):
            made(tmp_path)
    assert not folders(tmp_path)
    made(tmp_path)


@given(
    array=arrays(
        st.sampled_from(["u1", "<f4", "<i8"]),
        st.lists(st.integers(0, 4), min_size=1, max_size=4).map(tuple),
    ),
    turned=st.booleans(),
)
def test_arrays_are_written_as_numpy_writes_them(array: Any, *, turned: bool) -> None:
    """For every shape and memory order."""
    array = array.T if turned else array
    with tempfile.TemporaryDirectory() as folder:
        _write(Path(folder), "array", array, b"")
        read = np.load(Path(folder) / "array.npy", allow_pickle=False)
    assert (read.dtype, read.shape) == (array.dtype, array.shape)
    assert read.tobytes() == array.tobytes()


def test_flipping_needs_images(tmp_path: Path) -> None:
    """Refused when the dataset is prepared, whether it was there before or not."""
    for _ in range(2):
        with pytest.raises(SpecError, match="no images"):
            prepare(Spec.make({"flip": True}), tmp_path, source=Counted())
