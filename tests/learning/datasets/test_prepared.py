"""Opening a prepared dataset, and what is wrong with one that cannot be."""

import errno
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from downpour.base.errors import FileCorrupt, FileMissing, SharedDirectoryError
from downpour.learning.datasets import open_prepared, prepare
from downpour.learning.datasets.prepared import ARRAYS
from tests.learning.datasets.conftest import npz_spec


@pytest.fixture
def key(tmp_path: Path) -> str:
    """A small prepared dataset in the test's folder."""
    return prepare(npz_spec(tmp_path, x=np.ones((20, 2)), y=np.arange(20) % 2), tmp_path)


def test_examples_are_mapped_not_read(tmp_path: Path, key: str) -> None:
    """All arrays stay in their files; writing to them never reaches the files."""
    dataset = open_prepared(tmp_path, key)
    assert isinstance(dataset.train.x, np.memmap)
    dataset.train.x[:] = 7
    assert open_prepared(tmp_path, key).train.x[0, 0] == 1


def test_one_line_says_what_was_understood(tmp_path: Path, key: str) -> None:
    """Counts, shape, normalization and classes, for people to see a misreading by."""
    assert open_prepared(tmp_path, key).understood == (
        "16 training and 4 test examples of 2 numbers, normalized per feature; 2 classes"
    )


@pytest.mark.parametrize("name", ["../set", "a/b", "", ".hidden", "/etc"])
def test_only_bare_names_are_opened(tmp_path: Path, name: str) -> None:
    """A name from a message cannot lead out of the datasets' folder."""
    with pytest.raises(FileCorrupt):
        open_prepared(tmp_path, name)


def test_a_missing_object_is_missing(tmp_path: Path, key: str) -> None:
    """A folder or one of its files."""
    with pytest.raises(FileMissing):
        open_prepared(tmp_path, "nothing")
    (tmp_path / key / "test_y.npy").unlink()
    with pytest.raises(FileMissing, match=r"test_y\.npy"):
        open_prepared(tmp_path, key)


def test_a_look_that_came_too_early_makes_the_next_one_ask_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An NFS client believes that the folder is missing until its parent is listed."""
    listed: list[Path] = []
    listing = os.listdir

    def noted(path: Path) -> list[str]:
        listed.append(path)
        return listing(path)

    monkeypatch.setattr(os, "listdir", noted)
    with pytest.raises(FileMissing):
        open_prepared(tmp_path, "early")
    assert tmp_path in listed


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"train_samples": "many"}'])
def test_garbled_facts_are_corrupt(tmp_path: Path, key: str, content: str) -> None:
    """Facts that cannot be read are reported, for every kind of damage."""
    (tmp_path / key / "facts.json").write_text(content)
    with pytest.raises(FileCorrupt):
        open_prepared(tmp_path, key)


@pytest.mark.parametrize("name", ["train_x.npy", "train_y.npy", "test_x.npy", "test_y.npy"])
def test_a_short_or_altered_array_is_corrupt(tmp_path: Path, key: str, name: str) -> None:
    """A file that was cut, one with a flipped bit, and one of other examples of the same shape."""
    path = tmp_path / key / name
    whole = path.read_bytes()
    for altered in (whole[:-8], flipped(whole), whole[:-16] + bytes(range(16))):
        rewrite(path, altered)
        with pytest.raises(FileCorrupt, match=name):
            open_prepared(tmp_path, key)
    rewrite(path, whole)
    open_prepared(tmp_path, key)


def flipped(content: bytes) -> bytes:
    """Return what a single wrong bit makes of a file."""
    return content[:-1] + bytes([content[-1] ^ 1])


def rewrite(path: Path, content: bytes) -> None:
    """Write a file whose time of change differs, however coarse the file system's clock is."""
    changed_at = path.stat().st_mtime_ns + 10**9
    path.write_bytes(content)
    os.utime(path, ns=(changed_at, changed_at))


def test_facts_that_were_altered_are_corrupt(tmp_path: Path, key: str) -> None:
    """Also where they can be understood: another mean would be another model."""
    path = tmp_path / key / "facts.json"
    facts = json.loads(path.read_text())
    facts["mean"][0] += 1
    path.write_text(json.dumps(facts))
    with pytest.raises(FileCorrupt, match=r"facts\.json"):
        open_prepared(tmp_path, key)


def test_a_process_reads_what_it_has_verified_no_second_time(
    tmp_path: Path, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file is read through once; when it was replaced, it is read again."""
    open_prepared(tmp_path, key)
    read: list[str] = []
    opening = os.open

    def noted(path: Path, flags: int, mode: int = 0o777) -> int:
        read.append(path.name)
        return opening(path, flags, mode)

    monkeypatch.setattr(os, "open", noted)
    open_prepared(tmp_path, key)
    assert read == ["facts.json", *(f"{array}.npy" for array in ARRAYS)]
    read.clear()
    path = tmp_path / key / "test_x.npy"
    copy = path.with_name("copy")
    copy.write_bytes(path.read_bytes())
    copy.replace(path)
    open_prepared(tmp_path, key)
    assert read.count("test_x.npy") == 2


def test_a_folder_that_cannot_be_read_is_the_directory_that_is_away(
    tmp_path: Path, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What may pass is not taken for damage, which would be final."""

    def stale(*_: Any, **__: Any) -> Any:
        raise OSError(errno.ESTALE, "Stale file handle")

    for place in ((os, "open"), (np, "load")):
        with monkeypatch.context() as patch:
            patch.setattr(*place, stale)
            with pytest.raises(SharedDirectoryError, match="Stale file handle"):
                open_prepared(tmp_path, key)


def test_a_fifo_in_an_arrays_place_holds_up_nobody(tmp_path: Path, key: str) -> None:
    """To open it would wait for its writer."""
    for name in ("facts.json", "train_x.npy"):
        (tmp_path / key / name).rename(tmp_path / "away")
        os.mkfifo(tmp_path / key / name)
        with pytest.raises(FileCorrupt, match="not a regular file"):
            open_prepared(tmp_path, key)
        (tmp_path / "away").rename(tmp_path / key / name)
