"""Opening a prepared dataset, and what is wrong with one that cannot be."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest

from downpour.datasets import open_prepared, prepare
from downpour.errors import FileCorrupt, FileMissing
from downpour.spec import Spec


@pytest.fixture
def key(tmp_path: Path) -> str:
    """A small prepared dataset in the test's folder."""
    np.savez(tmp_path / "set.npz", x=np.ones((20, 2)), y=np.arange(20) % 2)
    return prepare(Spec.make({"dataset": "npz", "data_path": str(tmp_path / "set.npz")}), tmp_path)


def test_examples_are_mapped_not_read(tmp_path: Path, key: str) -> None:
    """All arrays stay in their files; writing to them never reaches the files."""
    dataset = open_prepared(tmp_path, key)
    assert isinstance(dataset.train.x, np.memmap)
    dataset.train.x[:] = 7
    assert open_prepared(tmp_path, key).train.x[0, 0] == 1


@pytest.mark.parametrize("name", ["../set", "a/b", "", ".hidden", "/etc"])
def test_only_bare_names_are_opened(tmp_path: Path, name: str) -> None:
    """A name from a message cannot lead out of the datasets' folder."""
    with pytest.raises(FileCorrupt):
        open_prepared(tmp_path, name)


def test_what_is_not_there_is_missing(tmp_path: Path, key: str) -> None:
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
    """Facts that cannot be understood are reported, whatever they are."""
    (tmp_path / key / "facts.json").write_text(content)
    with pytest.raises(FileCorrupt):
        open_prepared(tmp_path, key)


def test_a_short_or_exchanged_array_is_corrupt(tmp_path: Path, key: str) -> None:
    """A file that was cut, and one of another length than the facts say."""
    path = tmp_path / key / "train_x.npy"
    whole = path.read_bytes()
    path.write_bytes(whole[:-8])
    with pytest.raises(FileCorrupt, match=r"train_x\.npy"):
        open_prepared(tmp_path, key)
    path.write_bytes(whole)
    facts = json.loads((tmp_path / key / "facts.json").read_text())
    facts["arrays"]["train_x"]["shape"][0] += 1
    (tmp_path / key / "facts.json").write_text(json.dumps(facts))
    with pytest.raises(FileCorrupt, match="facts"):
        open_prepared(tmp_path, key)
