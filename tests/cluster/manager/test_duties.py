"""What the driver owes: nothing is answered or done that is not kept, and all in its order.

The judge is a storage that can be asked what it holds. It sees the shipped driver keep its duties,
whatever the storage does meanwhile, and each driver with a defect break one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from random import Random
from threading import Event as Signal
from typing import Any

import pytest

from downpour.base.errors import DownpourError, FailStop, SharedDirectoryError
from downpour.cluster.manager.driver import Driver
from downpour.core.node.manager import ManagerNode
from downpour.core.scheduler import Entry, Output, Scheduler
from downpour.core.scheduler import events as on
from downpour.core.scheduler.commands import Command
from tests.cluster.manager.drivers import DEFECTS
from tests.core.node.manager_defects import ActsOnTheLastFirst, ActsWithoutLeading, ForgetsToKeep
from tests.specs import plain_spec

PATIENCE_SECONDS = 30
SPEC = plain_spec(shards=2)
EXPERIMENTS = 40
NODE_DEFECTS = ForgetsToKeep, ActsWithoutLeading, ActsOnTheLastFirst


class Storage:
    """Keeps and carries out, remembers the order, and complains of what is done too early.

    Args:
        seed: when the directory is away.
        broken_at: the event after which something that nobody expected is raised.
    """

    def __init__(self, seed: int, broken_at: int | None = None) -> None:
        self.complaints: list[str] = []
        self.gathered: list[tuple[on.Event, list[Command]]] = []
        self.held: list[tuple[on.Event, list[Command]]] = []
        self.done: list[Command] = []
        self.is_replaced = False
        self._random = Random(seed)
        self._broken_at = broken_at
        self._broken = False

    def forecasts(self, at_seconds: float) -> on.Forecasts | None:
        """Forecast nothing."""
        del at_seconds
        return None

    def keep(self, core: Scheduler, event: on.Event, output: Output) -> list[Entry]:
        """Gather, until a defect shows."""
        if self._broken:
            self.complain("it goes on after a defect")
        if core.state.events_handled == self._broken_at:
            self._broken = True
            raise KeyError("a defect")
        self.gathered.append((event, list(output.commands)))
        return []

    def commit(self) -> None:
        """Hold what was gathered, unless the directory is away."""
        if self._random.random() < 0.3:
            raise SharedDirectoryError("shared", "is away")
        self.held += self.gathered
        self.gathered = []

    def carry_out(self, commands: Sequence[Command]) -> None:
        """Do it; all of it must be held, and nobody else manage."""
        if self.is_replaced and commands:
            self.complain("it acts although another one manages")
        for command in commands:
            if not any(command in led_to for _, led_to in self.held):
                self.complain(f"{command} is done before it is held")
        self.done += commands

    def answered(self, event: on.Event, answer: Future[Output]) -> None:
        """Look at an answer: what it acknowledges must be held, and have been done."""
        if answer.exception() is not None:
            return
        led_to = [commands for kept, commands in self.held if kept is event]
        if not led_to:
            self.complain(f"{event} is acknowledged before it is held")
        elif any(command not in self.done for command in led_to[0]):
            self.complain(f"{event} is acknowledged before it is done")

    def complain(self, sentence: str) -> None:
        """Note that a duty was broken."""
        self.complaints.append(sentence)

    def judge_order(self) -> None:
        """Look back: what was held was done, in the order in which it was decided."""
        decided = [command for _, commands in self.held for command in commands]
        if self.done != decided[: len(self.done)]:
            self.complain("commands are carried out in another order than decided")


def happening(seed: int) -> list[on.Event]:
    """Return what happens to a manager: experiments that come and go, workers that join."""
    chance = Random(seed)
    names = [f"e-{number}" for number in range(EXPERIMENTS)]
    events: list[on.Event] = [
        on.ExperimentSubmitted(at_seconds=0.0, experiment=name, spec=SPEC) for name in names
    ]
    for name in names:
        if chance.random() < 0.3:
            events.append(on.WorkerJoined(at_seconds=0.0, worker=f"w-of-{name}"))
        events.append(on.ExperimentCancelled(at_seconds=0.0, experiment=name, reason="enough"))
    return events


def judged(
    kind: Callable[..., Driver], seed: int, *, broken_at: int | None = None, replaced: bool = False
) -> tuple[Storage, list[DownpourError]]:
    """Drive a driver; returns the storage, with its complaints, and why the driver has ended."""
    storage = Storage(seed, broken_at)
    deaths: list[DownpourError] = []
    dead = Signal()

    def died(error: DownpourError) -> None:
        deaths.append(error)
        dead.set()

    def check_leader() -> None:
        if storage.is_replaced:
            raise SharedDirectoryError("shared", "another manager has taken over")

    driver = kind(Scheduler(), on_death=died, check_leader=check_leader)
    answers = [posted(driver, storage, event) for event in happening(seed)]
    driver.start(storage)
    wait_for(answers)
    if replaced:
        storage.is_replaced = True
        late = on.ExperimentSubmitted(at_seconds=0.0, experiment="late", spec=SPEC)
        wait_for([posted(driver, storage, late)])
    driver.stop()
    storage.judge_order()
    return storage, deaths


def posted(driver: Driver, storage: Storage, event: on.Event) -> Future[Output]:
    """Post an event, and have the storage look at the answer when it comes."""
    answer = driver.post(event)
    answer.add_done_callback(partial(storage.answered, event))
    return answer


def wait_for(answers: list[Future[Output]]) -> None:
    """Wait for all answers, whatever they are."""
    for answer in answers:
        answer.exception(PATIENCE_SECONDS)


@pytest.mark.parametrize("seed", range(8))
def test_nothing_is_answered_or_done_before_it_is_kept(seed: int) -> None:
    """However often the directory is away meanwhile, all that happened is held and done."""
    storage, deaths = judged(Driver, seed)
    assert storage.complaints == []
    assert deaths == []
    assert len(storage.held) >= 2 * EXPERIMENTS
    assert storage.done == [command for _, commands in storage.held for command in commands]


@pytest.mark.parametrize("seed", range(4))
def test_after_a_defect_nothing_is_answered_or_done(seed: int) -> None:
    """The driver ends, and says why."""
    storage, deaths = judged(Driver, seed, broken_at=60)
    assert storage.complaints == []
    assert len(deaths) == 1
    assert isinstance(deaths[0], FailStop)
    assert "KeyError: 'a defect' (test_duties.py, line " in str(deaths[0])


def test_who_is_replaced_does_nothing() -> None:
    """Another manager's term has begun: what it decides counts."""
    storage, deaths = judged(Driver, 0, replaced=True)
    assert storage.complaints == []
    assert [str(death) for death in deaths] == [
        "shared directory shared: another manager has taken over"
    ]


@pytest.mark.parametrize("defect", DEFECTS)
def test_the_judge_finds_every_defect(defect: type[Driver]) -> None:
    """A driver that breaks a duty is seen to."""
    assert complaints_of(defect)


@pytest.mark.parametrize("defect", NODE_DEFECTS)
def test_the_judge_finds_defects_of_the_node(defect: type[ManagerNode[Any]]) -> None:
    """Under the real driver; simulated managers show them, too."""
    assert complaints_of(partial(Driver, node_class=defect))


def complaints_of(defect: Callable[..., Driver]) -> list[str]:
    """Return what the judge complains of, whatever goes wrong."""
    return [
        complaint
        for seed in range(8)
        for storage, _ in (
            judged(defect, seed),
            judged(defect, seed, broken_at=60),
            judged(defect, seed, replaced=True),
        )
        for complaint in storage.complaints
    ]
