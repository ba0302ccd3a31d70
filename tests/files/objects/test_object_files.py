"""What is particular to files in an object store; what all stores keep is in `store/test_base`."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest
from obstore.store import MemoryStore

from downpour.base.errors import FileCorrupt, FileMissing
from downpour.base.values import PublishedFile
from downpour.files.store.bucket import Bucket
from downpour.files.store.object_files import FileCache, ObjectFiles
from downpour.files.store.publish import RetryPolicy


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
