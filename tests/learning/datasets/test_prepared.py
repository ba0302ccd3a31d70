"""Datasets from their source to what is prepared."""

import errno
import json
import os
import subprocess
import sys
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from downpour.base.errors import FileCorrupt, FileMissing, SharedDirectoryError, SpecError
from downpour.core.spec import Spec
from downpour.learning.datasets import SOURCES, check_source, open_prepared, prepare
from downpour.learning.datasets.prepared import ARRAYS
from downpour.learning.datasets.source import held_out, random_order
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


def test_an_unknown_dataset_is_refused_by_naming_the_known() -> None:
    """The line lists every source."""
    with pytest.raises(SpecError) as refusal:
        check_source(Spec.make({"dataset": "minst"}))
    assert all(name in str(refusal.value) for name in SOURCES)


@pytest.mark.parametrize("name", sorted(set(SOURCES) - {"npz", "folder"}))
def test_well_known_sets_pass_the_cheap_check_without_their_files(name: str) -> None:
    """A download may still help; but options they do not have are refused."""
    check_source(Spec.make({"dataset": name}))
    with pytest.raises(SpecError, match="only a factory has options"):
        check_source(Spec.make({"dataset": name, "dataset_options": {"a": 1}}))


def test_importing_the_datasets_brings_no_heavy_package() -> None:
    """torch, torchvision, scikit-learn and Pillow come only when they are needed."""
    code = "import sys, downpour.learning.datasets; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"torch", "torchvision", "sklearn", "PIL"} & set(done.stdout.split())


def test_a_data_folder_that_is_not_there_is_seen_before_anything_starts(tmp_path: Path) -> None:
    """A mistyped --data-dir is not answered by a download, also of an impossible name."""
    for name in ("nowhere", "a" * 5_000, "a\0b"):
        with pytest.raises(SpecError, match=r"data_dir = .*: no such folder"):
            check_source(Spec.make({"dataset": "mnist"}), tmp_path / name)


@pytest.mark.parametrize("dataset", ["npz", "folder"])
@pytest.mark.parametrize("path", ["a" * 5_000, "a/" * 2_500, "a\0b", "~nobody/x", "/proc/1/cwd/x"])
def test_a_path_that_cannot_be_is_refused_in_one_short_line(
    tmp_path: Path, dataset: str, path: str
) -> None:
    """For every error of the file system; a long value is shortened."""
    spec = Spec.make({"dataset": dataset, "data_path": path})
    for data_dir in (None, tmp_path):
        with pytest.raises(SpecError) as refusal:
            check_source(spec, data_dir)
        assert refusal.value.field == "data_path"
        assert len(str(refusal.value)) < 200


def test_the_cut_does_not_depend_on_the_seed(tmp_path: Path) -> None:
    """Experiments with different seeds are measured on the same test set."""
    assert prepare(Spec.make({"seed": 0}), tmp_path) == prepare(Spec.make({"seed": 1}), tmp_path)


def test_the_images_are_those_of_scikit_learn(tmp_path: Path) -> None:
    """Train and test examples together are what `load_digits` returns, in other order."""
    from sklearn.datasets import load_digits

    theirs = load_digits()
    dataset = open_prepared(tmp_path, prepare(Spec.make({}), tmp_path))
    parts = (dataset.train, dataset.test)
    ours = np.concatenate([np.c_[part.y, part.x.reshape(len(part.y), -1)] for part in parts])
    wanted = np.c_[theirs.target, theirs.data]
    assert np.array_equal(ours[np.lexsort(ours.T)], wanted[np.lexsort(wanted.T)])


def test_an_order_is_pinned() -> None:
    """These numbers may not change with any version of numpy, or old experiments cannot repeat."""
    assert random_order(8, 1, 2, 3).tolist() == [1, 3, 7, 5, 2, 0, 4, 6]


@pytest.mark.slow
def test_the_beginning_of_an_order_takes_no_memory_for_the_rest() -> None:
    """It is that of the whole order, and found among millions in a few megabytes."""
    count = 3_000_000
    whole = random_order(count, 1, 2)
    for first in (1, 1000, count // 2, count, count + 1):
        assert np.array_equal(random_order(count, 1, 2, first=first), whole[:first])
    tracemalloc.start()
    random_order(count, 1, 2, first=10)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 16 * count


@given(st.lists(st.integers(0, 5), max_size=120))
def test_each_class_gives_a_fifth_of_itself(classes: list[int]) -> None:
    """Both parts together are the whole, and no class is off by a whole example."""
    labels = np.asarray(classes, dtype=np.int64)
    train, test = held_out(labels, len(labels))
    assert np.array_equal(np.sort(np.concatenate([train, test])), np.arange(len(labels)))
    for label in set(classes):
        share = np.sum(labels == label) / 5
        assert abs(np.sum(labels[test] == label) - share) < 1
