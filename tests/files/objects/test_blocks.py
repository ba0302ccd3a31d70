"""Examples in a bucket: each block is fetched once by a machine, and only while it is the same."""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import numpy as np
import obstore
import pytest
from obstore.store import S3Store

from downpour.base.errors import FileCorrupt, SharedDirectoryError, SpecError, StoreError
from downpour.data import Blocks
from downpour.files.store.bucket import Bucket, Found, StoreAway
from downpour.files.store.publish import RetryPolicy
from downpour.files.store.shared_directory import folder_of
from downpour.learning.blocks import places
from tests.files.objects.lab import S3Server

BLOCK = 16 * 2 + 2  # bytes of a block of two windows of eight tokens
WINDOWS = 40


@pytest.fixture
def store(s3: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> S3Store:
    """Two files of tokens in the place `set` of a bucket, on a machine with a folder of its own."""
    for name, value in {**s3.environment, "DOWNPOUR_LOCAL": str(tmp_path / "local")}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("downpour.learning.blocks.formats._TOKENS_BYTES", 32)
    monkeypatch.setattr(places, "_RETRIES", RetryPolicy(seconds=0))
    store = s3.objects("bucket", tmp_path.name)
    for name in ("set/a", "set/b"):
        obstore.put(store, name, np.arange(8 * WINDOWS // 2 + 1, dtype=np.uint16).tobytes())
    return store


@pytest.fixture
def url(store: S3Store, tmp_path: Path) -> str:  # noqa: ARG001 - what lies there
    """The address of the files."""
    return f"s3://bucket/{tmp_path.name}/set"


@pytest.fixture
def fetched(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """The ranges that are fetched from now on: their keys, and where they begin."""
    ranges: list[tuple[str, int]] = []
    get_range = Bucket.get_range

    def noted(bucket: Bucket, key: str, begin: int, end: int, tag: str) -> bytes | None:
        ranges.append((key, begin))
        return get_range(bucket, key, begin, end, tag)

    monkeypatch.setattr(Bucket, "get_range", noted)
    return ranges


def test_processes_of_a_machine_fetch_a_block_once(
    url: str, fetched: list[tuple[str, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two readers have two views of one cache, even of another user's; both see the same."""
    monkeypatch.setattr("os.utime", Mock(side_effect=PermissionError))
    one, other = Blocks(url, length=8), Blocks(url, length=8)
    assert len(one) == WINDOWS
    for blocks in (one, other):
        rows = blocks.__getitems__([3, 0, 39, 2])
        assert [int(x[0]) for x, _ in rows] == [24, 0, 19 * 8, 16]
    assert sorted(fetched) == [("set/a", 0), ("set/a", 32), ("set/b", 18 * 16)]


def test_a_damaged_or_lost_part_of_the_cache_is_fetched_again(
    url: str, fetched: list[tuple[str, int]], tmp_path: Path
) -> None:
    """The digest behind each block tells."""
    want = Blocks(url, length=8).__getitems__([0, 2])
    kept = [path for path in (tmp_path / "local").rglob("*") if path.stat().st_size == BLOCK + 16]
    assert len(kept) == 2
    for path in kept:
        content = bytearray(path.read_bytes())
        content[5] ^= 1
        path.write_bytes(content)
    kept[0].unlink()
    again = Blocks(url, length=8).__getitems__([0, 2])
    assert all(bool((a[0] == b[0]).all()) for a, b in zip(want, again, strict=True))
    assert len(fetched) == 4


def test_a_cache_that_cannot_be_written_costs_only_time(
    url: str, fetched: list[tuple[str, int]], tmp_path: Path
) -> None:
    """Such as one on a full disk: a block is fetched again."""
    blocks = Blocks(url, length=8, memory_megabytes=0)
    place = folder_of(f"s3://bucket/{tmp_path.name}") / "blocks"
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_bytes(b"")
    assert [int(blocks[index][0][0]) for index in (0, 39, 0)] == [0, 19 * 8, 0]
    assert len(fetched) == 3


def test_the_cache_stays_within_its_bound(
    url: str, fetched: list[tuple[str, int]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It drops the blocks that were used longest ago."""
    monkeypatch.setenv("DOWNPOUR_CACHE", str(3 * (BLOCK + 16)))
    blocks = Blocks(url, length=8, memory_megabytes=0)
    for index in (*range(0, WINDOWS, 2), 38, 36, 0):
        blocks[index]
    folder = next((tmp_path / "local").rglob("blocks"))
    assert sum(path.stat().st_size for path in folder.iterdir()) <= 3 * (BLOCK + 16)
    assert len(fetched) == WINDOWS // 2 + 1


def test_a_task_fetches_ahead_in_its_order_within_a_bound(
    url: str, fetched: list[tuple[str, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A part of the cache lies before the step, nothing behind, and then what comes after it.

    Threads end with the examples.
    """
    monkeypatch.setattr("downpour.learning.blocks._FETCHERS", 1)
    monkeypatch.setenv("DOWNPOUR_CACHE", str(8 * 3 * BLOCK))
    blocks = Blocks(url, length=8)
    order = np.array([30, 31, 4, 0, 5, 12, 13, 20])
    blocks.expect(order)
    _until(lambda: len(fetched) == 3)
    assert fetched == [("set/b", 160), ("set/a", 64), ("set/a", 0)]
    blocks.reach(3)
    _until(lambda: len(fetched) == 5)
    assert fetched[3:] == [("set/a", 192), ("set/b", 0)]
    blocks.__getitems__(order.tolist())
    assert len(fetched) == 5
    blocks.expect(np.array([18, 16, 14, 10, 8]))
    _until(lambda: len(fetched) == 8)
    blocks.reach(4)
    _until(lambda: len(fetched) == 9)
    assert fetched[8:] == [("set/a", 8 * 16)]
    blocks.expect(np.array([2, 3]), np.array([2, 6]))
    _until(lambda: len(fetched) == 11)
    assert fetched[9:] == [("set/a", 2 * 16), ("set/a", 6 * 16)]
    del blocks
    _until(lambda: all(one.name != "read ahead" for one in threading.enumerate()))


def test_a_full_cache_keeps_what_the_next_epoch_needs_first(
    url: str, fetched: list[tuple[str, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of twenty blocks in the same order again, a cache of ten saves nearly half of the fetches.

    One that drops what was used longest ago would save none. Nothing is fetched ahead here, because
    then it depends on the threads what has room. An example takes a second.
    """
    now = [time.time()]
    clock = SimpleNamespace(time=lambda: now[0], monotonic=lambda: now[0])
    monkeypatch.setattr("downpour.learning.blocks.time", clock)
    monkeypatch.setattr("downpour.learning.blocks.places.time", clock)
    monkeypatch.setattr("downpour.learning.blocks._FETCHERS", 0)
    monkeypatch.setenv("DOWNPOUR_CACHE", str(10 * (BLOCK + 16)))
    blocks, order = Blocks(url, length=8, memory_megabytes=0), np.arange(0, WINDOWS, 2)
    for _ in range(4):
        blocks.expect(order, order)
        for place, index in enumerate(order.tolist()):
            blocks[index]
            blocks.reach(place + 1)
            now[0] += 1
    assert len(fetched) <= 20 + 3 * 11


def _until(holds: Callable[[], bool]) -> None:
    """Wait for another thread; the test's own limit ends it."""
    while not holds():
        os.sched_yield()


def test_an_object_that_changed_or_went_is_named(url: str, store: S3Store) -> None:
    """Nothing of two versions is mixed; a new listing shows the new version."""
    blocks = Blocks(url, length=8)
    was = blocks.fingerprint
    obstore.put(store, "set/b", np.zeros(8 * WINDOWS // 2 + 1, np.uint16).tobytes())
    with pytest.raises(FileCorrupt, match="b: has changed since it was opened"):
        blocks[39]
    assert not Blocks(url, length=8)[39][0].any()
    assert Blocks(url, length=8).fingerprint != was
    obstore.delete(store, "set/a")
    with pytest.raises(StoreError, match="a: cannot be fetched: no such object"):
        blocks[0]


def test_a_store_that_refuses_is_one_line(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file is named with the reason, and nothing stays half in the cache.

    It is no error of the shared directory, after which a manager ends.
    """
    blocks = Blocks(url, length=8)
    denied = SharedDirectoryError("s3://bucket", "permission denied")

    def refuse(*_: object) -> bytes:
        raise denied

    with monkeypatch.context() as patch:
        patch.setattr(Bucket, "get_range", refuse)
        with pytest.raises(StoreError, match=r"^a: cannot be fetched: permission denied") as raised:
            blocks[0]
    assert not isinstance(raised.value, SharedDirectoryError)
    assert blocks[0][0].tolist() == list(range(8))


def test_a_store_that_is_away_for_a_while_is_waited_for(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is no mistake of the spec, however long that lasts; what the store refuses is one."""
    found = Bucket.found
    answers: list[Exception] = [StoreAway("s3://bucket", "connection refused")] * 3

    def answer(bucket: Bucket, name: str) -> list[Found]:
        if answers:
            raise answers.pop()
        return found(bucket, name)

    monkeypatch.setattr(Bucket, "found", answer)
    with pytest.raises(StoreError, match="connection refused") as ended:
        Blocks(url, length=8)
    assert not isinstance(ended.value, SharedDirectoryError)
    monkeypatch.setattr(places, "_RETRIES", RetryPolicy(seconds=9, sleep=lambda _: None))
    assert len(Blocks(url, length=8)) == WINDOWS
    assert not answers
    answers.append(SharedDirectoryError("s3://bucket", "permission denied"))
    with pytest.raises(SpecError, match="permission denied"):
        Blocks(url, length=8)


TASK = """
from torch import nn
from torch.nn.functional import cross_entropy
from downpour import Task
from downpour.data import Blocks

class Next(Task):
    def __init__(self, where=""):
        self.where = where
    def model(self):
        return nn.Sequential(nn.Embedding(200, 8), nn.Linear(8, 200))
    def examples(self, part):
        return Blocks(self.where, length=8)
    def loss(self, model, batch):
        return cross_entropy(model(batch[0]).flatten(0, 1), batch[1].flatten())
"""


@pytest.mark.slow
def test_a_run_has_the_same_bytes_from_folder_and_bucket(
    s3: S3Server, url: str, store: S3Store, tmp_path: Path
) -> None:
    """With a cold cache and a warm one, one worker and three, loaders and none."""
    (tmp_path / "next.py").write_text(TASK)
    (tmp_path / "set").mkdir()
    for name in ("a", "b"):
        (tmp_path / "set" / name).write_bytes(bytes(obstore.get(store, f"set/{name}").bytes()))
    models = set()
    for number, (where, more) in enumerate(
        [
            (str(tmp_path / "set"), ["--workers", "1", "--loaders", "0"]),
            (url, ["--workers", "3", "--loaders", "2"]),
            (url, ["--workers", "2"]),
        ]
    ):
        (tmp_path / "spec.toml").write_text(
            f'task = "next:Next"\ntask_options = {{where = "{where}"}}\nshards = 3\nepochs = 2\n'
            "batch_size = 4\norder = 'blocks'\n"
        )
        shared = tmp_path / f"shared-{number}"
        words = ["run", str(tmp_path / "spec.toml"), "--shared", str(shared), *more]
        done = subprocess.run(
            [sys.executable, "-m", "downpour", *words],
            env={**s3.process_environment, "DOWNPOUR_LOCAL": str(tmp_path / "local")},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        models |= {path.read_bytes() for path in shared.rglob("model.safetensors")}
    assert len(models) == 1
