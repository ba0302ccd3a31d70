"""Where a shared directory in an object store is, and who may manage it."""

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from threading import Event, Thread

import numpy as np
import pytest
from obstore.store import MemoryStore

from downpour.base.errors import (
    FileCorrupt,
    FileMissing,
    SharedDirectoryError,
    SpecError,
    StoreError,
)
from downpour.base.values import PublishedFile
from downpour.files.store import lease
from downpour.files.store.bucket import Bucket
from downpour.files.store.directory import FileCache, ObjectFiles, names_in
from downpour.files.store.lease import (
    DEAD_SECONDS,
    PULSES,
    Leader,
    Lease,
    Watch,
    current_leader,
    leader_of,
)
from downpour.files.store.publish import RetryPolicy
from downpour.files.store.shared_directory import (
    fetch_dataset,
    is_sent,
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
    """The managers' machine by its folder, of any name, and all others by the object store."""
    manager, worker = cloud.on("manager\udcff", create=True), cloud.on("worker")
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
    send_dataset(worker, "digits-1")  # as a manager's successor on this machine
    fetch_dataset(cloud.on("another", create=True), "digits-1")
    for name in held:
        Bucket(URL, cloud.objects).remove(f"datasets/digits-1/{name}")
    fetch_dataset(worker, "digits-1")
    with pytest.raises(FileMissing):
        send_dataset(worker, "digits-1")


def test_a_full_disk_is_not_the_buckets(cloud: Cloud, monkeypatch: pytest.MonkeyPatch) -> None:
    """The one line names this machine's folder, and the variable that can name another."""
    worker = cloud.on("worker")
    Bucket(URL, cloud.objects).put_new("datasets/digits-1/facts.json", b"x")
    with monkeypatch.context() as patch:
        patch.setattr(Path, "open", lambda *_: os.fdopen(os.open("/dev/full", os.O_WRONLY), "wb"))
        with pytest.raises(StoreError, match=r"worker \(DOWNPOUR_LOCAL\): full"):
            fetch_dataset(worker, "digits-1")
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
    assert is_sent(manager, key)
    Bucket(URL, cloud.objects).remove(f"datasets/{key}/noise.npy")
    assert not is_sent(manager, key)
    with pytest.raises(FileMissing, match=f"{key}/noise.npy"):
        opened.blocks["noise"].verify(np.array([2, 3]), BLOCK_BYTES)


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


PATIENCE_SECONDS = 30.0


@pytest.fixture
def leases() -> Iterator[list[Lease]]:
    """Those that a test puts here are released."""
    held: list[Lease] = []
    yield held
    for one in held:
        one.release()


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pulse that is as fast as a test."""
    monkeypatch.setattr(lease, "BEAT_SECONDS", 0.05)
    monkeypatch.setattr(lease, "DEAD_SECONDS", 1.0)


def led_from(cloud: Cloud, machine: str, leases: list[Lease]) -> Lease:
    """The lease of a manager that leads there."""
    lease = Lease(cloud.on(machine, create=True))
    lease.acquire(wait=False, while_waiting=lambda _: None)
    lease.claim(f"{machine}:1")
    leases.append(lease)
    return lease


def die(lease: Lease) -> None:
    """End as a machine does that loses its power: nothing is said any more."""
    assert lease._pulse is not None
    lease._pulse._ended.set()
    lease._pulse._thread.join()
    lease._pulse = None


@pytest.mark.usefixtures("quick")
def test_a_manager_on_another_machine_is_refused_while_the_leader_lives(
    cloud: Cloud, leases: list[Lease]
) -> None:
    """It says who leads, and the leader notices nothing."""
    first = led_from(cloud, "first", leases)
    with pytest.raises(
        SharedDirectoryError, match=r"another manager serves this directory .*first:1"
    ):
        Lease(cloud.on("second", create=True)).acquire(wait=False, while_waiting=lambda _: None)
    assert first.is_leader


@pytest.mark.usefixtures("quick")
def test_a_manager_whose_machine_is_gone_is_replaced(cloud: Cloud, leases: list[Lease]) -> None:
    """If it only stood still, it finds the later term; the cluster stays the same."""
    first = led_from(cloud, "first", leases)
    die(first)
    said: list[Leader | None] = []
    second = Lease(cloud.on("second", create=True))
    leases.append(second)
    second.acquire(wait=True, while_waiting=said.append)
    leader = second.claim("second:1")
    assert [one.addresses for one in said if one is not None] == [("first:1",)]
    assert (leader.term, first.is_leader, second.is_leader) == (2, False, True)
    assert said[0] is not None
    assert leader.cluster == said[0].cluster


@pytest.mark.usefixtures("quick")
def test_a_successor_waits_until_the_leader_ends(cloud: Cloud, leases: list[Lease]) -> None:
    """A manager that is stopped says so, and nobody counts seconds then."""
    first = led_from(cloud, "first", leases)
    second, waiting, there = Lease(cloud.on("second", create=True)), Event(), Event()

    def wait() -> None:
        second.acquire(wait=True, while_waiting=lambda _: waiting.set())
        there.set()

    waiter = Thread(target=wait)
    waiter.start()
    assert waiting.wait(PATIENCE_SECONDS)
    assert not there.is_set()
    first.release()
    assert there.wait(PATIENCE_SECONDS)
    waiter.join()
    leases.append(second)


def test_on_its_own_machine_a_manager_is_followed_at_once(
    cloud: Cloud, leases: list[Lease]
) -> None:
    """There the lock says that it is dead: no ten seconds are waited."""
    first = led_from(cloud, "first", leases)
    die(first)
    first.release()
    assert led_from(cloud, "first", leases).term == 2


def test_two_that_begin_at_once_get_terms_of_their_own(cloud: Cloud, leases: list[Lease]) -> None:
    """The object of a term is made once; who has the lower one sees that it does not lead."""
    shared = [cloud.on(machine, create=True) for machine in ("first", "second")]
    both = [Lease(one) for one in shared]
    leases += both
    terms = [lease.claim(f"host:{number}").term for number, lease in enumerate(both)]
    assert terms == [1, 2]
    die(both[0])
    assert not both[0].is_leader


def test_a_pulse_is_counted_by_the_watchers_clock() -> None:
    """A change begins the count anew; one that was never seen counts from the first look."""
    bucket, clock = Bucket(URL, MemoryStore()), iter([0.0, 0.0, 4.0, 8.0, 13.9, 14.0, 15.0])
    watch = Watch(bucket, 3, clock=lambda: next(clock))
    beats = {1: b"one", 2: b"two", 3: b"two", 4: b"two"}
    seen = []
    for look in range(5):
        if look in beats:
            bucket.put(f"{PULSES}/000003", beats[look])
        seen.append(watch.is_dead())
    assert seen == [False, False, False, False, False]
    assert watch.seen_alive
    assert DEAD_SECONDS == 10.0
    bucket.put(f"{PULSES}/000003", b"ended")
    assert watch.is_dead()
