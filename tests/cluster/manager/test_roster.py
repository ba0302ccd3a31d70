"""The names of registered workers, and which failed call shows that one is dead."""

from __future__ import annotations

from dataclasses import replace

from downpour.cluster.manager.roster import Roster
from downpour.network.rpc import Address, WorkerClient
from tests.cluster.manager.test_command_runner import REGISTRATION

CLIENT = WorkerClient(Address("127.0.0.1", 1))


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
    assert not roster.is_dead("anna", former, refused=False)
    roster.enter(REGISTRATION, CLIENT)
    assert not roster.is_dead("anna", former)
    entry = roster.get("anna")
    roster.strike("anna")
    assert entry is not None
    assert not roster.is_dead("anna", entry)
