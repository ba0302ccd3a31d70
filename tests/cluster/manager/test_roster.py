"""The registered workers: their names, and how their deaths are noticed while they are silent."""

import socket
from collections.abc import Callable, Iterator
from dataclasses import replace
from threading import Event
from typing import Any

import pytest

from downpour.base.states import ExperimentState
from downpour.cluster.manager import status as connection_monitor
from downpour.cluster.manager.status import ConnectionMonitor, Roster
from downpour.network.rpc import Address, ManagerClient, WorkerClient, parse_address
from downpour.network.rpc.messages import Heartbeat, TaskMessage
from tests.cluster.manager.conftest import CALM
from tests.cluster.manager.test_command_runner import REGISTRATION

CLIENT = WorkerClient(Address("127.0.0.1", 1))
PATIENCE_SECONDS = 30.0


def test_two_processes_of_one_name_are_told_apart() -> None:
    """The first process keeps the name; one that registers again keeps its own."""
    roster, other = Roster(), replace(REGISTRATION, pid=2)
    again = replace(other, port=2)
    assert roster.enter(REGISTRATION, CLIENT) == "anna"
    assert [roster.enter(each, CLIENT) for each in (other, again)] == ["anna-2", "anna-2"]
    assert roster.names() == ("anna", "anna-2")
    entry = roster.get("anna-2")
    assert entry is not None
    assert entry.address.port == 2


def test_a_failed_call_says_something_of_its_own_registration_alone() -> None:
    """The worker may have registered anew meanwhile, or have left."""
    roster = Roster()
    roster.enter(REGISTRATION, CLIENT)
    former = roster.get("anna")
    assert former is not None
    assert roster.is_dead("anna", former)
    roster.enter(REGISTRATION, CLIENT)
    assert not roster.is_dead("anna", former)
    entry = roster.get("anna")
    roster.strike("anna")
    assert entry is not None
    assert not roster.is_dead("anna", entry)


def never(worker: Any, task: TaskMessage) -> None:
    """Take a task, and do not finish it."""
    del worker, task


def farewells(cluster: Any, experiment: str) -> list[tuple[str, str]]:
    """Who is on record as having left, and why."""
    left = cluster.facts(experiment, "worker-left")
    return [(one["worker"], one["reason"]) for one in left]


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


def test_a_worker_that_dies_before_its_first_heartbeat_is_missed(
    cluster: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """Its registration came over the connection that ends; the log says so once."""
    caplog.set_level("INFO")
    worker = cluster.join("one", never)
    experiment = cluster.submit(policy="wait")
    with ManagerClient(parse_address(str(cluster.manager.address))) as its:
        its.register_worker(worker.registration)
        worker.server.stop()
    cluster.status_when(lambda status: not status.workers)
    assert farewells(cluster, experiment) == [(worker.name, ended(worker))]
    assert caplog.messages.count(f"{worker.name} is lost: {ended(worker)}") == 1


class Entries:
    """A roster with one worker, a connection monitor over it, and who is lost."""

    def __init__(self) -> None:
        self.roster, self.lost = Roster(), list[str]()
        self.monitor = ConnectionMonitor(
            self.roster, WorkerClient, lambda worker, _: self.lost.append(worker)
        )

    def enter(self, address: Address) -> None:
        registration = replace(REGISTRATION, host=address.host, port=address.port)
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
    entries.monitor.heard("anna")
    entries.monitor.connection_ended()
    assert entries.lost == []


def test_a_worker_that_is_slow_to_answer_stays(
    entries: Entries, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where somebody takes the call, the worker's silence will tell, or nothing."""
    monkeypatch.setattr(connection_monitor, "_ANSWER_SECONDS", 0.05)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        entries.enter(Address(*silent.getsockname()))
        entries.monitor.heard("anna")
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
    "leaves",
    [lambda entries, _: entries.roster.strike("anna"), Entries.enter],
    ids=["left", "anew"],
)
def test_a_worker_that_has_left_or_registered_anew_is_not_lost(
    entries: Entries, nobody: Address, leaves: Callable[[Entries, Address], None]
) -> None:
    """What is known over a former connection says nothing of the worker as it is now."""
    entries.enter(nobody)
    entries.monitor.heard("anna")
    leaves(entries, nobody)
    entries.monitor.connection_ended()
    assert entries.lost == []
    entries.enter(nobody)
    entries.monitor.heard("anna")
    entries.monitor.connection_ended()
    assert entries.lost == ["anna"]
