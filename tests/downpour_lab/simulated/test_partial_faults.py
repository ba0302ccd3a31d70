"""Faults of one direction or of one host: all others do not notice."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from downpour.base.errors import DeadlineExceeded
from downpour_lab.simulated.disk import Disk, DiskTimings
from downpour_lab.simulated.threads import Clock, Network, Process

OVERDUE = "overdue"


class Listener(Process):
    """Answers each call with its own host."""

    role = "listener"

    def __init__(self, clock: Clock, host: str) -> None:
        super().__init__(clock, host)
        self.heard = 0

    def say(self) -> str:
        """Answer."""
        self.heard += 1
        return self.host


class Party:
    """A caller and two listeners."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.network = Network(self.clock, Random(1), deadline_seconds=3.0)
        self.caller = Process(self.clock, "caller")
        self.listeners = {name: Listener(self.clock, name) for name in ("ann", "bob")}
        for name, listener in self.listeners.items():
            self.network.serve(name, listener, listener)

    def ask(self, name: str) -> list[Any]:
        """Call a listener, run all actions, and return what came of it, and when."""
        results: list[Any] = []
        began = self.clock.now_seconds

        def call() -> None:
            try:
                results.append(self.network.call(self.caller, name, "say"))
            except DeadlineExceeded:
                results.append(OVERDUE)

        self.caller.begin(call)
        while not results and self.clock.step():
            pass
        return [*results, self.clock.now_seconds - began]


@pytest.fixture
def party() -> Party:
    """One that nothing has happened to."""
    return Party()


def test_a_request_may_arrive_though_its_answer_is_lost(party: Party) -> None:
    """The caller cannot tell that from a request that was lost."""
    party.network.cut("ann", "caller")
    assert party.ask("ann")[0] == OVERDUE
    assert party.listeners["ann"].heard == 1
    party.network.cut("caller", "bob")
    assert party.ask("bob")[0] == OVERDUE
    assert party.listeners["bob"].heard == 0


def test_a_link_that_was_cut_twice_is_mended_twice(party: Party) -> None:
    """The end of one fault mends nothing of another."""
    for _ in range(2):
        party.network.cut("caller", "ann")
    party.network.mend("caller", "ann")
    assert party.ask("ann")[0] == OVERDUE
    party.network.mend("caller", "ann")
    assert party.ask("ann")[0] == "ann"


def test_a_host_that_loses_messages_or_is_far_hinders_no_other(party: Party) -> None:
    """A request and its answer both take the way."""
    party.network.state.lost_at["ann"] = 1.0
    assert party.ask("ann")[0] == OVERDUE
    assert party.ask("bob")[0] == "bob"
    party.network.state.far["bob"] = 1.0
    answer, seconds = party.ask("bob")
    assert (answer, 2.0 < seconds < 2.1) == ("bob", True)


def test_the_directory_may_be_slow_for_one_host() -> None:
    """Where it is slow for all as well, the slower of both counts."""
    disk = Disk(Clock(), Random(1), DiskTimings())
    disk.state.slower, disk.state.slower_at["ann"] = 10.0, 100.0
    assert 50 <= disk.takes(1.0, "ann") <= 150
    assert 5 <= disk.takes(1.0, "bob") <= 15


def test_a_lease_ends_only_for_its_holder() -> None:
    """Whoever has taken the lock since keeps it."""
    clock = Clock()
    disk = Disk(clock, Random(1), DiskTimings())
    ann, bob = Process(clock, "ann"), Process(clock, "bob")
    assert disk.lock(ann)
    disk.lose_lock(bob)
    assert not disk.lock(bob)
    disk.lose_lock(ann)
    assert disk.lock(bob)
