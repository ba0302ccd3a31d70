"""Which versions are kept in memory, and for how long."""

from functools import partial
from pathlib import Path

import numpy as np
import pytest

from downpour.base.errors import FileCorrupt, FileMissing
from downpour.base.values import PublishedFile
from downpour.files.aggregators import Move, Versions, moved
from downpour.files.store import Array, DirectoryStore, ParameterFile, encode, step_to
from downpour.files.store.publish import RetryPolicy

NUMBERS: dict[str, Array] = {"w": np.arange(1000, dtype=np.float32)}
ABOUT = {"buffers": "[]"}


@pytest.fixture
def store(tmp_path: Path) -> DirectoryStore:
    """An empty folder, whose missing files are not waited for."""
    return DirectoryStore(tmp_path, RetryPolicy(seconds=0))


def published(store: DirectoryStore, name: str) -> PublishedFile:
    """Publish a version."""
    return store.put_new(name, encode(NUMBERS, ABOUT))


def test_a_cached_version_equals_its_file(store: DirectoryStore) -> None:
    """Tensors, metadata and layout are those that a reader of the file finds."""
    file = published(store, "model")
    versions = Versions(store)
    read = versions.read(file)
    versions.keep(file, NUMBERS, ABOUT)
    kept = versions.read(file)
    assert (kept.metadata, kept.layout) == (read.metadata, read.layout)
    assert kept.tensors["w"].tobytes() == read.tensors["w"].tobytes()


def test_a_kept_version_is_not_read_again_until_it_is_forgotten(store: DirectoryStore) -> None:
    """Its file may even be gone; what is removed takes no memory."""
    file, versions = published(store, "model"), Versions(store)
    versions.keep(file, NUMBERS, ABOUT)
    store.delete("model")
    assert versions.read(file).tensors["w"][3] == 3
    for forget in (partial(versions.forget, [file]), versions.clear):
        versions.keep(file, NUMBERS, ABOUT)
        forget()
        with pytest.raises(FileMissing):
            versions.read(file)


def test_what_has_no_room_in_memory_is_mapped(
    store: DirectoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its file is not verified again, and may even be gone."""
    files = [published(store, f"model-{number}") for number in range(2)]
    versions = Versions(store, limit_bytes=NUMBERS["w"].nbytes)
    monkeypatch.setattr(store, "read", lambda _: pytest.fail("verified"))
    for file in files:
        versions.keep(file, NUMBERS, ABOUT)
        store.delete(file.name)
    assert versions.read(files[0]).tensors["w"] is NUMBERS["w"]
    assert isinstance(versions.read(files[1]), ParameterFile)
    assert versions.base_of(files[1], "none").is_verified


def test_the_newest_stays_where_versions_are_steps(store: DirectoryStore) -> None:
    """However large it is: the next one is a step from it, and its file alone does not tell it."""
    first = published(store, "model-0")
    files, versions = [first], Versions(store, limit_bytes=NUMBERS["w"].nbytes - 1)
    for number in (1, 2):
        base = Versions(store).read(first)
        model, content = step_to({"w": NUMBERS["w"] + number}, base, first, "int8")
        files.append(store.put_new(f"model-{number}", content))
        versions.keep(files[-1], model.tensors, model.metadata)
    for file in files:
        store.delete(file.name)
    assert versions.read(files[2]).tensors["w"].tobytes() == model.tensors["w"].tobytes()
    with pytest.raises(FileMissing):
        versions.read(files[1])


JOINED = np.arange(12, dtype=np.float32)


@pytest.mark.parametrize(
    ("tensors", "verified"),
    [
        ({"a": JOINED[:4], "b": JOINED[4:].reshape(2, 4)}, True),
        ({"a": JOINED[4:8], "b": JOINED[8:]}, False),
        ({"a": JOINED[6:], "b": JOINED[:6]}, False),
        ({"a": JOINED.copy()}, False),
    ],
    ids=["in one piece", "a part of it", "in another order", "apart"],
)
def test_a_base_is_taken_from_memory_where_its_bytes_are_those_of_its_file(
    store: DirectoryStore, tensors: dict[str, Array], *, verified: bool
) -> None:
    """Otherwise from the file, with the same numbers."""
    file, versions = store.put_new("model", encode(tensors, ABOUT)), Versions(store)
    versions.keep(file, tensors, ABOUT)
    base = versions.base_of(file, "none")
    assert base.is_verified is verified
    held = base.form.model.views(base.source.data)
    assert all(held[name].tobytes() == tensor.tobytes() for name, tensor in tensors.items())


def test_a_manager_that_has_kept_nothing_reads_the_steps(store: DirectoryStore) -> None:
    """The base of a round's updates is the version, and never its step by itself."""
    first = published(store, "model-0")
    model, content = step_to({"w": NUMBERS["w"] + 1}, Versions(store).read(first), first, "int8")
    second = store.put_new("model-1", content)
    versions = Versions(store)
    with pytest.raises(FileCorrupt, match="is a difference"):
        versions.base_of(second, "int8")
    versions.follow([first, second])
    base = versions.base_of(second, "int8")
    assert base.form.base == second.checksum
    held = base.form.model.views(base.source.data)
    assert held["w"].tobytes() == model.tensors["w"].tobytes()


def test_a_move_from_memory_has_the_bytes_of_one_from_files(store: DirectoryStore) -> None:
    """So a manager that takes over, which has kept nothing, goes on with the same numbers."""
    random = np.random.default_rng(0)
    tensors = [{"w": random.normal(size=150_000).astype(np.float32)} for _ in range(3)]
    old, model, update = (
        store.put_new(f"file-{number}", encode(one, {})) for number, one in enumerate(tensors)
    )
    keeping = Versions(store)
    keeping.keep(old, tensors[0], {})
    keeping.keep(model, tensors[1], {})
    moves = [Move(shard=0, file=update, base=old, factor=0.3)]
    after = moved(keeping, model, moves)["w"]
    assert after.tobytes() == moved(Versions(store), model, moves)["w"].tobytes()
    x0, x, xi = (one["w"] for one in tensors)
    assert after.tobytes() == (x - 0.3 * (x0 - xi)).tobytes()
    assert keeping.read(model).tensors["w"].tobytes() == x.tobytes()
