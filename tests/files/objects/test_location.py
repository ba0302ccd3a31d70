"""What a shared directory's object store adds: a URL that says where it is, and its files."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from obstore.store import MemoryStore

from downpour.base.errors import FileCorrupt, FileMissing, SharedDirectoryError, SpecError
from downpour.base.values import PublishedFile
from downpour.files.store.bucket import Bucket
from downpour.files.store.directory import names_in
from downpour.files.store.lease import Lease, current_leader, leader_of
from downpour.files.store.object_files import FileCache, ObjectFiles
from downpour.files.store.publish import RetryPolicy
from downpour.files.store.shared_directory import (
    fetch_dataset,
    open_location,
    seen_location,
    send_dataset,
)
from downpour.learning.datasets import array_folder
from downpour.learning.datasets.array_folder import open_array_folder, write_array_folder
from downpour.learning.datasets.digests import BLOCK_BYTES
from tests.files.objects.cloud import URL, Cloud


def test_a_path_is_a_folder_as_before(tmp_path: Path) -> None:
    """Also as a URL of files; `~` and a missing folder are what they were."""
    assert open_location(str(tmp_path), create=True).root == tmp_path
    assert open_location(f"file://{tmp_path}", create=False).root == tmp_path
    assert seen_location(tmp_path).bucket is None
    with pytest.raises(SharedDirectoryError, match="no such folder"):
        open_location(str(tmp_path / "no"), create=False)
    with pytest.raises(SpecError, match="file:///"):
        open_location("file://elsewhere/x", create=True)


def test_two_places_have_two_folders(cloud: Cloud, tmp_path: Path) -> None:
    """Also if their readable parts are alike."""
    assert cloud.on("a").root.parent == tmp_path / "a"
    assert seen_location("s3://a/b-c").root != seen_location("s3://a-b/c").root


def test_a_published_file_is_read_on_another_machine(cloud: Cloud) -> None:
    """An experiment's files, and the proof that a worker sees the manager's place."""
    manager, worker = cloud.on("manager", create=True), cloud.on("worker")
    file = manager.create_experiment("x").put_new("model", [b"bytes"])
    assert bytes(worker.store("x").read(file)) == b"bytes"
    presence = manager.announce("secret")
    assert worker.read_presence(presence.name) == "secret"
    presence.withdraw()
    with pytest.raises(SharedDirectoryError, match="it sees a different folder") as caught:
        worker.read_presence(presence.name)
    assert URL in str(caught.value)


def test_every_machine_sees_who_leads(cloud: Cloud) -> None:
    """The managers' machine by its folder, and all others by the object store."""
    manager, worker = cloud.on("manager", create=True), cloud.on("worker")
    assert leader_of(worker) is None
    for port in (1, 2):
        leader = Lease(manager).claim(f"there:{port}")
        assert leader_of(worker) == leader_of(manager) == leader
    assert current_leader(manager.terms) == leader
    assert leader.term == 2


def test_a_dataset_travels_once(cloud: Cloud) -> None:
    """It is whole on arrival, and a machine that has it asks for nothing."""
    manager, worker = cloud.on("manager", create=True), cloud.on("worker")
    folder = manager.datasets / "digits-1"
    folder.mkdir()
    for name in ("facts.json", "train_x.npy"):
        (folder / name).write_text(name)
    with pytest.raises(FileMissing):
        fetch_dataset(worker, "digits-1")
    assert list(worker.datasets.iterdir()) == []
    send_dataset(manager, "digits-1")
    send_dataset(manager, "digits-1")
    fetch_dataset(worker, "digits-1")
    held = {path.name: path.read_text() for path in (worker.datasets / "digits-1").iterdir()}
    assert held.pop("origin") == f"{URL}\ndatasets/digits-1"
    assert held == {"facts.json": "facts.json", "train_x.npy": "train_x.npy"}
    for name in held:
        Bucket(URL, cloud.objects).remove(f"datasets/digits-1/{name}")
    fetch_dataset(worker, "digits-1")


def test_a_machine_fetches_only_the_blocks_that_it_uses(
    cloud: Cloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of packed arrays and of others; both have eight blocks here."""
    monkeypatch.setattr(array_folder, "WHOLE_BYTES", BLOCK_BYTES)
    noise = np.random.default_rng(0).integers(0, 256, (8, BLOCK_BYTES), np.uint8)
    arrays = {"noise": noise, "packed": noise & 1, "small": noise[0]}
    manager, worker = cloud.on("manager", create=True), cloud.on("worker")
    key = write_array_folder(manager.datasets, "some", {}, arrays)
    send_dataset(manager, key)
    fetch_dataset(worker, key)
    large = ("noise", "packed")
    opened = open_array_folder(worker.datasets, key, arrays, by_block=large)
    for name in large:
        opened.blocks[name].verify(np.array([2, 7]), BLOCK_BYTES)
        assert (opened.arrays[name][[2, 7]] == arrays[name][[2, 7]]).all()
        assert not opened.arrays[name][[0, 6]].any()
    assert (opened.arrays["small"] == noise[0]).all()
    assert not {"noise.npy", "packed.npy.gz"} & set(names_in(worker.datasets / key))


def test_a_dataset_that_is_half_sent_is_not_there(cloud: Cloud) -> None:
    """`facts.json` is the last of it."""
    manager, worker = cloud.on("manager", create=True), cloud.on("worker")
    Bucket(URL, cloud.objects).put_new("datasets/digits-1/train_x.npy", b"x")
    assert manager.bucket is not None
    with pytest.raises(FileMissing):
        fetch_dataset(worker, "digits-1")


def files(bucket: Bucket, cache: Path) -> ObjectFiles:
    """One experiment's files, without patience."""
    return ObjectFiles(bucket, "experiments/a", FileCache(cache), RetryPolicy(seconds=0.0))


def test_another_machine_fetches_a_file_once(tmp_path: Path) -> None:
    """What it has fetched it reads from its own disk from then on."""
    bucket = Bucket("s3://memory", MemoryStore())
    file = files(bucket, tmp_path / "one").put_new("a", [b"bytes"])
    other = files(bucket, tmp_path / "other")
    assert bytes(other.read(file)) == b"bytes"
    bucket.remove("experiments/a/a")
    assert bytes(other.read(file)) == b"bytes"
    with pytest.raises(FileMissing):
        files(bucket, tmp_path / "third").read(file)


def test_a_damaged_copy_is_fetched_again(tmp_path: Path) -> None:
    """Nobody reads what a disk has altered."""
    store = files(Bucket("s3://memory", MemoryStore()), tmp_path)
    file = store.put_new("a", [b"bytes"])
    (tmp_path / file.checksum).write_bytes(b"BYTES")
    assert bytes(store.read(file)) == b"bytes"


def test_an_altered_object_is_corrupt_and_not_kept(tmp_path: Path) -> None:
    """By its checksum, as a file would be."""
    bucket = Bucket("s3://memory", MemoryStore())
    file = replace(files(bucket, tmp_path / "one").put_new("a", [b"bytes"]), checksum="0" * 32)
    with pytest.raises(FileCorrupt, match="checksum"):
        files(bucket, tmp_path / "other").read(file)
    assert not (tmp_path / "other").exists()


def test_a_checksum_that_is_a_path_leads_nowhere(tmp_path: Path) -> None:
    """It comes in messages, and names files in the cache."""
    store = files(Bucket("s3://memory", MemoryStore()), tmp_path / "cache")
    store.put_new("a", [b"bytes"])
    (tmp_path / "secret").write_bytes(b"12345")
    with pytest.raises(FileCorrupt):
        store.read(PublishedFile(name="a", size_bytes=5, checksum="../secret"))


def test_the_cache_forgets_what_was_used_longest_ago(tmp_path: Path) -> None:
    """Once it holds more than it may; views of that stay valid."""
    cache = FileCache(tmp_path, limit_bytes=10)
    store = ObjectFiles(Bucket("s3://memory", MemoryStore()), "x", cache, RetryPolicy(seconds=0.0))
    first = store.put_new("a", [b"aaaaa"])
    view = store.read(first)
    os.utime(tmp_path / first.checksum, (1, 1))
    second = store.put_new("b", [b"bbbbb"])
    store.put_new("c", [b"ccccc"])
    assert cache.find(first) is None
    assert cache.find(second) is not None
    assert bytes(view) == b"aaaaa"
    assert bytes(store.read(first)) == b"aaaaa"
