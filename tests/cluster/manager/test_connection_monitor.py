"""A worker's death is noticed when its connection ends; whoever lives is left alone."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Iterator
from threading import Event
from typing import Any

import pytest

from downpour.base.states import ExperimentState
from downpour.base.values import NumericClass, SystemState
from downpour.cluster.manager import roster as connection_monitor
from downpour.cluster.manager.roster import ConnectionMonitor, Roster
from downpour.network.rpc import Address, ManagerClient, WorkerClient, parse_address
from downpour.network.rpc.messages import Heartbeat, Registration, TaskMessage

CALM = SystemState(cpu_others=0.0, load_average=0.0, memory_used=0.0, io_wait=0.0)
PATIENCE_SECONDS = 30.0
NUMERICS = NumericClass(torch="2", device="cpu", instruction_set="x86_64")


def never(worker: Any, task: TaskMessage) -> None:
    """Take a task, and do not finish it."""
    del worker, task


def farewells(cluster: Any, experiment: str) -> list[tuple[str, str]]:
    """Who is on record as having left, and why."""
    facts = [json.loads(line) for line in cluster.record(experiment)]
    return [(one["worker"], one["reason"]) for one in facts if one["kind"] == "worker-left"]


def ended(worker: Any) -> str:
    """The reason that is given for a death that was noticed at once."""
    return f"its connection ended and {worker.server.address} does not answer"


def test_a_dead_workers_shard_is_trained_by_another_at_once(cluster: Any) -> None:
    """Not its silence tells, which takes ten seconds, but the end of its connection."""
    begun = Event()
    dying = cluster.join("dying", lambda *_: begun.set())
    experiment = cluster.submit(evaluate_every=0, policy="wait")
    # Not only assigned: the call that asks for the task would find the worker gone.
    assert begun.wait(PATIENCE_SECONDS)
    with ManagerClient(parse_address(str(cluster.manager.address))) as its:
        assert its.heartbeat(Heartbeat(worker=dying.name, running=(), system=CALM)).known
        dying.server.stop()
    cluster.join("other")
    assert cluster.end_of(experiment).experiment.state is ExperimentState.FINISHED
    assert farewells(cluster, experiment) == [(dying.name, ended(dying))]


def test_who_registers_and_dies_before_its_first_heartbeat_is_missed(cluster: Any) -> None:
    """Its registration came over the connection that ends."""
    worker = cluster.join("one", never)
    experiment = cluster.submit(policy="wait")
    with ManagerClient(parse_address(str(cluster.manager.address))) as its:
        its.register_worker(worker.registration)
        worker.server.stop()
    cluster.status_when(lambda status: not status.workers)
    assert farewells(cluster, experiment) == [(worker.name, ended(worker))]


class Entries:
    """A roster with one worker, a connection monitor over it, and who is lost."""

    def __init__(self) -> None:
        self.roster, self.lost = Roster(), list[str]()
        self.monitor = ConnectionMonitor(
            self.roster, WorkerClient, lambda worker, _: self.lost.append(worker)
        )

    def enter(self, address: Address) -> None:
        """Take the worker in, or again, at an address."""
        registration = Registration(
            name="one",
            host=address.host,
            port=address.port,
            protocol=1,
            version="",
            presence="",
            numeric_class=NUMERICS,
            hostname="here",
            pid=1,
        )
        self.roster.enter(registration, WorkerClient(address))


@pytest.fixture
def entries() -> Iterator[Entries]:
    """Nobody is there yet."""
    made = Entries()
    yield made
    made.roster.close()


@pytest.fixture
def nobody() -> Address:
    """An address at which nobody answers."""
    with socket.create_server(("127.0.0.1", 0)) as sock:
        return Address(*sock.getsockname())


def test_a_worker_that_opens_another_connection_stays(cluster: Any, entries: Entries) -> None:
    """It is called back, and answers."""
    entries.enter(cluster.join("one").server.address)
    entries.monitor.heard("one")
    entries.monitor.connection_ended()
    assert entries.lost == []


def test_a_worker_that_is_slow_to_answer_stays(
    entries: Entries, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where somebody takes the call, the worker's silence will tell, or nothing."""
    monkeypatch.setattr(connection_monitor, "_ANSWER_SECONDS", 0.05)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        entries.enter(Address(*silent.getsockname()))
        entries.monitor.heard("one")
        entries.monitor.connection_ended()
    assert entries.lost == []


def test_where_no_worker_was_heard_nobody_is_lost(entries: Entries, nobody: Address) -> None:
    """Clients connect, too; and who sends heartbeats may not be known."""
    entries.enter(nobody)
    entries.monitor.connection_ended()
    entries.monitor.heard("stranger")
    entries.monitor.connection_ended()
    assert entries.lost == []


@pytest.mark.parametrize(
    "leaves", [lambda entries, _: entries.roster.strike("one"), Entries.enter], ids=["left", "anew"]
)
def test_one_that_has_left_or_registered_anew_is_not_looked_after(
    entries: Entries, nobody: Address, leaves: Callable[[Entries, Address], None]
) -> None:
    """What is known over a former connection says nothing of the worker as it is now."""
    entries.enter(nobody)
    entries.monitor.heard("one")
    leaves(entries, nobody)
    entries.monitor.connection_ended()
    assert entries.lost == []
    entries.enter(nobody)
    entries.monitor.heard("one")
    entries.monitor.connection_ended()
    assert entries.lost == ["one"]
