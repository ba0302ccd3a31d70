"""The thread that owns the core: who waits for it is always answered, however it ends."""

from collections.abc import Callable, Iterator, Sequence
from queue import SimpleQueue
from threading import Event as Signal
from threading import Thread
from typing import Any

import pytest

from downpour.base.errors import DownpourError, Refused, SharedDirectoryError
from downpour.cluster.manager.driver import Driver, ManagerSink
from downpour.core.node.manager import STOOD_STILL_SECONDS, TICK_SECONDS, ManagerNode
from downpour.core.scheduler import Entry, Output, Scheduler
from downpour.core.scheduler.events import (
    Event,
    ExperimentSubmitted,
    Forecasts,
    Tick,
    WorkerJoined,
    WorkerLeft,
)
from downpour.core.scheduler.outputs import Command
from downpour.host.process import Threads
from tests.core.node.manager_defects import ForecastsAfterwards, JudgesAfterAStandstill
from tests.specs import plain_spec

PATIENCE_SECONDS = 10
JOINED = WorkerJoined(at_seconds=0.0, worker="anna")


class Sink(ManagerSink):
    """Remembers events; may do something at each."""

    def __init__(self, at_each: Callable[[Event], None] = lambda _: None) -> None:
        self.seen: SimpleQueue[Event] = SimpleQueue()
        self.carried_out: list[Command] = []
        self.forecast: Forecasts | None = None
        self._at_each = at_each

    def forecasts(self, at_seconds: float) -> Forecasts | None:
        """Forecast nothing, or once what the test has put there."""
        del at_seconds
        forecast, self.forecast = self.forecast, None
        return forecast

    def keep(self, core: Scheduler, event: Event, output: Output) -> list[Entry]:
        del core, output
        self.seen.put(event)
        self._at_each(event)
        return []

    def commit(self) -> None:
        """All is kept."""

    def carry_out(self, commands: Sequence[Command]) -> None:
        self.carried_out += commands


@pytest.fixture
def driver() -> Iterator[Driver]:
    """A running driver whose commands go nowhere."""
    made = Driver(Scheduler())
    made.start(Sink())
    yield made
    made.stop()


def test_after_the_end_events_and_questions_are_refused_instead_of_waiting() -> None:
    """A future that nobody will ever fulfil is not handed out."""
    driver = Driver(Scheduler())
    driver.start(Sink())
    driver.stop()
    with pytest.raises(Refused, match="stopping"):
        driver.post(JOINED).result(PATIENCE_SECONDS)
    with pytest.raises(Refused, match="stopping"):
        driver.ask(lambda core: len(core.state.workers))


def forecasts_first(node_class: type[ManagerNode[Any]] = ManagerNode) -> bool:
    """Whether a core hears what is forecast before time passes for it."""
    sink = Sink()
    forecasts, tick = Forecasts(at_seconds=0.0), Tick(at_seconds=0.0)
    sink.forecast = forecasts
    driver = Driver(Scheduler(), node_class=node_class)
    driver.start(sink)
    driver.post(tick).result(PATIENCE_SECONDS)
    seen = [sink.seen.get(timeout=PATIENCE_SECONDS) for _ in range(2)]
    driver.stop()
    return seen == [forecasts, tick]


def test_forecasts_are_heard_before_they_are_needed() -> None:
    """So a decision never rests on older forecasts than there are."""
    assert forecasts_first()
    assert not forecasts_first(ForecastsAfterwards)


def test_commands_run_in_order_and_before_the_answer() -> None:
    """Whoever hears that an event was taken in finds that its commands have begun."""
    sink, order = Sink(), list[str]()
    driver = Driver(Scheduler())
    submitted = [
        ExperimentSubmitted(at_seconds=0.0, experiment=name, spec=plain_spec(shards=1))
        for name in ("a", "b")
    ]
    replies = [driver.post(event) for event in submitted]

    def note(commands: Sequence[Command]) -> None:
        order.extend(type(command).__name__ for command in commands)
        order.extend("answered" for reply in replies if reply.done())

    sink.carry_out = note  # type: ignore[method-assign]
    driver.start(sink)
    outputs = [reply.result(PATIENCE_SECONDS) for reply in replies]
    driver.stop()
    decided = [type(command).__name__ for output in outputs for command in output.commands]
    assert decided[0] == "Prepare"
    assert order == [decided[0], "answered", *decided[1:]]


def test_a_driver_acts_once_its_journal_is_written_and_it_still_leads() -> None:
    """It repeats the commit while the directory is away; another manager may begin meanwhile."""
    sink, order = Sink(), list[str]()

    def commit() -> None:
        order.append("commit")
        if len(order) < 3:
            raise SharedDirectoryError("shared", "is away")

    def act(commands: Sequence[Command]) -> None:
        order.extend("act" for _ in commands)

    sink.commit, sink.carry_out = commit, act  # type: ignore[method-assign]
    driver = Driver(Scheduler(), check_leader=lambda: order.append("look"))
    spec = plain_spec(shards=1)
    reply = driver.post(ExperimentSubmitted(at_seconds=0.0, experiment="a", spec=spec))
    driver.start(sink)
    reply.result(PATIENCE_SECONDS)
    driver.stop()
    assert order[:5] == ["commit", "commit", "commit", "look", "act"]


def test_events_in_the_queue_at_the_end_are_refused() -> None:
    """Stopping takes effect before what was posted after it."""
    inside, go_on = Signal(), Signal()

    def hold(event: Event) -> None:
        del event
        inside.set()
        assert go_on.wait(PATIENCE_SECONDS)

    driver = Driver(Scheduler())
    driver.start(Sink(hold))
    first = driver.post(JOINED)
    assert inside.wait(PATIENCE_SECONDS)
    stopping = Thread(target=driver.stop)
    stopping.start()
    driver.wait_for_change(10**9, PATIENCE_SECONDS)  # returns once the end has begun
    posts = [driver.post(JOINED) for _ in range(10)]
    go_on.set()
    stopping.join(PATIENCE_SECONDS)
    assert first.result(PATIENCE_SECONDS) == Output()
    with pytest.raises(Refused):
        posts[-1].result(PATIENCE_SECONDS)


def test_a_replaced_manager_answers_nobody_and_does_nothing() -> None:
    """What it had begun to decide is for the leading manager; what leads to nothing is taken."""
    died: SimpleQueue[DownpourError] = SimpleQueue()
    sink = Sink()

    def replaced() -> None:
        raise SharedDirectoryError("shared", "another manager has taken over")

    driver = Driver(Scheduler(), on_death=died.put, check_leader=replaced)
    driver.start(sink)
    assert driver.post(JOINED).result(PATIENCE_SECONDS) == Output()
    left = driver.post(WorkerLeft(at_seconds=1.0, worker="anna", reason="tired"))
    with pytest.raises(Refused, match="is stopping"):
        left.result(PATIENCE_SECONDS)
    assert "taken over" in str(died.get(timeout=PATIENCE_SECONDS))
    assert sink.carried_out == []
    with pytest.raises(Refused, match="is stopping"):
        driver.post(JOINED).result(PATIENCE_SECONDS)
    driver.stop()


def test_waits_for_a_change_end_with_the_driver(driver: Driver) -> None:
    """A long poll does not hold up the end."""
    answers: SimpleQueue[bool] = SimpleQueue()
    waiting = Thread(target=lambda: answers.put(driver.wait_for_change(10**9, 600)))
    waiting.start()
    driver.end_waits()
    assert answers.get(timeout=PATIENCE_SECONDS) is False
    waiting.join()


def hears_before_it_judges(node_class: type[ManagerNode[Any]] = ManagerNode) -> bool:
    """Whether a manager that stood still lets no time pass before its workers could be heard."""
    now = 0.0

    def stand_still(event: Event) -> None:
        nonlocal now
        now += 60.0 if isinstance(event, WorkerJoined) else TICK_SECONDS

    sink = Sink(stand_still)
    threads = Threads()
    threads.now = lambda: now  # type: ignore[method-assign]
    driver = Driver(Scheduler(), threads, node_class=node_class)
    driver.start(sink)
    driver.post(JOINED).result(PATIENCE_SECONDS)
    beats = [WorkerLeft(at_seconds=now, worker="bert", reason="") for _ in range(3)]
    for beat in beats:
        driver.post(beat).result(PATIENCE_SECONDS)
    seen = [sink.seen.get(timeout=PATIENCE_SECONDS) for _ in range(4)]
    assert 3 * TICK_SECONDS < STOOD_STILL_SECONDS
    now += STOOD_STILL_SECONDS
    while not isinstance(seen[-1], Tick):
        seen.append(sink.seen.get(timeout=PATIENCE_SECONDS))
    driver.stop()
    return seen[:4] == [JOINED, *beats]


def test_a_driver_that_stood_still_hears_its_workers_before_it_judges() -> None:
    """After a standstill no tick comes before the workers had time to be heard."""
    assert hears_before_it_judges()
    assert not hears_before_it_judges(JudgesAfterAStandstill)
