"""One manager at a time in a bucket, whatever machine it is on."""

from __future__ import annotations

from collections.abc import Iterator
from threading import Event, Thread

import pytest
from obstore.store import MemoryStore

from downpour.base.errors import SharedDirectoryError
from downpour.files.store import presence
from downpour.files.store.bucket import Bucket
from downpour.files.store.lease import Leader, Lease
from downpour.files.store.presence import DEAD_SECONDS, FOLDER, Watch
from tests.files.objects.cloud import URL, Cloud

PATIENCE_SECONDS = 30.0


@pytest.fixture
def leases() -> Iterator[list[Lease]]:
    """Those that a test puts here are released."""
    held: list[Lease] = []
    yield held
    for lease in held:
        lease.release()


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pulse that is as fast as a test."""
    monkeypatch.setattr(presence, "BEAT_SECONDS", 0.05)
    monkeypatch.setattr(presence, "DEAD_SECONDS", 1.0)


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
            bucket.put(f"{FOLDER}/000003", beats[look])
        seen.append(watch.is_dead())
    assert seen == [False, False, False, False, False]
    assert watch.seen_alive
    assert DEAD_SECONDS == 10.0
    bucket.put(f"{FOLDER}/000003", b"ended")
    assert watch.is_dead()
