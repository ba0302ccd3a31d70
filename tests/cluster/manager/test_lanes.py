"""Commands and calls wait in lanes: in order for each, and beside each other for all."""

from queue import SimpleQueue
from threading import Event
from typing import Any, get_args

import pytest

from downpour.cluster.manager.command_runner import CommandRunner
from downpour.cluster.manager.status import Roster
from downpour.cluster.manager.workspace import Workspaces
from downpour.core.scheduler import outputs as out
from downpour.host.process import Job, Lanes, OrderedCalls
from tests.cluster.manager.conftest import Queue
from tests.cluster.manager.test_command_runner import ASSIGN, CONCLUDE, FILE, PREPARE
from tests.specs import plain_update

PATIENCE_SECONDS = 10
ATTEMPT = ASSIGN.assigned.attempt


def test_calls_to_one_worker_keep_their_order() -> None:
    """However many threads there are, calls under one name run one after the other."""
    calls, seen = OrderedCalls(threads=4), SimpleQueue[int]()
    for number in range(200):
        calls.submit("anna", lambda number=number: seen.put(number))  # type: ignore[misc]
    assert [seen.get(timeout=PATIENCE_SECONDS) for _ in range(200)] == list(range(200))
    calls.close()


def test_a_slow_worker_does_not_hold_up_another() -> None:
    """While a call to one worker waits, calls to another go through."""
    calls, release, done = OrderedCalls(threads=2), Event(), SimpleQueue[str]()

    def wait() -> None:
        release.wait(PATIENCE_SECONDS)
        done.put("slow")

    calls.submit("slow", wait)
    calls.submit("quick", lambda: done.put("quick"))
    assert done.get(timeout=PATIENCE_SECONDS) == "quick"
    release.set()
    assert done.get(timeout=PATIENCE_SECONDS) == "slow"
    calls.close()


UPDATE = plain_update(FILE)
LANES: list[tuple[out.Command, str]] = [
    (PREPARE, "alone"),
    (ASSIGN, "call anna"),
    (out.Cancel(worker="anna", attempt=ATTEMPT, reason="late"), "call anna"),
    (out.HandOver(worker="anna", attempt=ATTEMPT), "call anna"),
    (out.Gather(experiment="any", round=0, shard=0, update=UPDATE, model=FILE, base=FILE), "work"),
    (out.Aggregate(experiment="any", round=0, model=FILE, pushes=(), train_seconds=1.0), "work"),
    (out.Evaluate(experiment="any", round=0, model=FILE), "beside"),
    (out.Publish(experiment="any", model=FILE), "work"),
    (out.Adopt(experiment="any", attempts=()), "work"),
    (out.Discard(experiment="any", files=()), "work"),
    (CONCLUDE, "work"),
    (out.Dismiss(worker="anna"), ""),
]


class NamedLanes(Lanes):
    """Notes the lane of each command, and runs none."""

    def __init__(self) -> None:
        self.used: list[str] = []

    def call(self, worker: str, _: Job) -> None:
        self.used.append(f"call {worker}")

    def work(self, _: Job) -> None:
        self.used.append("work")

    def beside(self, _: Job) -> None:
        self.used.append("beside")

    def alone(self, _: Job) -> None:
        self.used.append("alone")


def never(*_: object) -> Any:
    """Fail, because no command runs."""
    raise AssertionError


@pytest.mark.parametrize(("command", "lane"), LANES)
def test_each_command_waits_in_its_lane(command: out.Command, lane: str) -> None:
    """A dismissal waits in none."""
    queue, lanes = Queue(SimpleQueue()), NamedLanes()
    spaces = Workspaces([], queue.fail)
    CommandRunner(spaces, Roster(), queue, lanes, never, never).start(command)
    assert lanes.used == ([lane] if lane else [])


def test_every_command_has_a_lane() -> None:
    """So a new one gets it by a decision."""
    assert {type(command) for command, _ in LANES} == set(get_args(out.Command))
