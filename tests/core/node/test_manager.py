"""What a manager decides: what to journal, what to do, and when to wake up."""

from downpour.base.states import HEARTBEATS_A_SECOND, Evaluation
from downpour.base.values import Progress, SystemState
from downpour.core.node.manager import (
    STOOD_STILL_SECONDS,
    TICK_SECONDS,
    Asked,
    ManagerNode,
    Posted,
    heartbeat_reply,
)
from downpour.core.scheduler import Entry, Output, Scheduler
from downpour.core.scheduler import events as on
from tests.specs import plain_attempt

JOINED = on.WorkerJoined(at_seconds=0.0, worker="ann")
IDLE = SystemState(cpu_others=0.0, load_average=0.0, memory_used=0.0, io_wait=0.0)
GOOD = Evaluation(loss=0.0, metrics={}, class_accuracy=(), samples=1, seconds=0.1)
LEFT = on.WorkerLeft(at_seconds=0.0, worker="ann", reason="tired")


class Desk:
    """Remembers the journaled events, and forecasts what the test has set."""

    def __init__(self) -> None:
        self.kept: list[on.Event] = []
        self.journaled: list[Entry] = []
        self.forecast: on.Forecasts | None = None
        self.core = Scheduler()
        self.node = ManagerNode[str](self.core, self)
        self.node.start(0.0)

    def forecasts(self, at_seconds: float) -> on.Forecasts | None:
        del at_seconds
        forecast, self.forecast = self.forecast, None
        return forecast

    def keep(self, core: Scheduler, event: on.Event, output: Output) -> list[Entry]:
        del core, output
        self.kept.append(event)
        return self.journaled


def test_events_and_questions_are_taken_in_their_order() -> None:
    """Each asker gets the state after the items before its question."""
    desk = Desk()
    count = Asked(lambda core: len(core.state.workers), "how many?")
    ready = desk.node.take([count, Posted(JOINED, "joined"), count, Posted(LEFT), count], 0.1)
    assert [step.asker for step in ready.steps] == [
        "how many?", "joined", "how many?", None, "how many?",
    ]  # fmt: skip
    assert [step.answer for step in ready.steps if step.event is None] == [0, 1, 0]
    assert desk.kept == [JOINED, LEFT]


def test_a_question_that_fails_is_its_askers_affair() -> None:
    """The events after it are handled."""
    ready = Desk().node.take([Asked(lambda _: 1 / 0, "nonsense"), Posted(JOINED)], 0.1)
    assert isinstance(ready.steps[0].error, ZeroDivisionError)
    assert ready.steps[1].event == JOINED


def test_only_who_does_something_must_lead() -> None:
    """An event without commands or entries is handled even if another manager leads."""
    desk = Desk()
    assert not desk.node.take([Posted(JOINED)], 0.1).must_lead
    assert desk.node.take([Posted(LEFT)], 0.1).must_lead


def test_a_replaced_manager_acknowledges_no_journaled_event() -> None:
    """Even without commands: entries behind the successor's first line are void."""
    desk = Desk()
    desk.journaled = [on.Evaluated(at_seconds=0.0, experiment="one", round=0, evaluation=GOOD)]
    assert desk.node.take([Posted(JOINED)], 0.1).must_lead


def test_ticks_follow_the_arrived_events_twice_a_second() -> None:
    """A worker whose heartbeat is in the queue is not silent."""
    desk = Desk()
    assert desk.node.wake_at_seconds == TICK_SECONDS
    desk.node.take([Posted(JOINED)], TICK_SECONDS - 0.1)
    assert desk.kept == [JOINED]
    ready = desk.node.take([Posted(LEFT)], TICK_SECONDS + 0.1)
    assert desk.kept[1:] == [LEFT, on.Tick(at_seconds=TICK_SECONDS + 0.1)]
    assert ready.wake_at_seconds == 2 * TICK_SECONDS + 0.1
    assert ready.stood_still_seconds == 0.0


def test_a_manager_that_stood_still_lets_its_workers_be_heard_first() -> None:
    """The result says for how long it stood still."""
    desk = Desk()
    ready = desk.node.take([], 60.0)
    assert ready.stood_still_seconds == 60.0 - TICK_SECONDS
    assert ready.wake_at_seconds == 60.0 + STOOD_STILL_SECONDS
    assert desk.kept == []
    desk.node.take([], 60.0 + STOOD_STILL_SECONDS)
    assert desk.kept == [on.Tick(at_seconds=60.0 + STOOD_STILL_SECONDS)]


def test_forecasts_come_before_time_passes_and_before_a_round_begins() -> None:
    """Before other events there is no forecast."""
    desk = Desk()
    forecast = desk.forecast = on.Forecasts(at_seconds=1.0)
    desk.node.take([Posted(JOINED)], 0.1)
    assert desk.kept == [JOINED]
    desk.node.take([], TICK_SECONDS)
    assert desk.kept[1:] == [forecast, on.Tick(at_seconds=TICK_SECONDS)]


def test_a_worker_that_cannot_be_called_must_register() -> None:
    """Even if the core knows it; unwanted attempts are named as well."""
    core = Scheduler()
    core.handle(JOINED)
    attempt = plain_attempt()
    told = Progress(attempt=attempt, steps_done=1, steps_total=2, elapsed_seconds=1.0)
    assert heartbeat_reply(core, "ann", [told], can_call=True) == (True, (attempt,), 0.0)
    assert heartbeat_reply(core, "ann", [], can_call=False) == (False, (), 0.0)
    assert heartbeat_reply(core, "bob", [], can_call=True) == (False, (), 0.0)


def test_many_workers_are_asked_for_fewer_heartbeats_each() -> None:
    """All together send as many as the manager can well take in; none is lost for waiting so long.

    A worker counts as lost once it has missed four of the intervals that it was asked to leave.
    """
    core, workers, interval = Scheduler(), 5 * HEARTBEATS_A_SECOND, 5.0
    for number in range(workers):
        core.handle(on.WorkerJoined(at_seconds=0.0, worker=f"w{number}"))
    beat = on.HeartbeatReceived(at_seconds=1.0, worker="w0", running=(), system=IDLE)
    core.handle(beat)
    assert heartbeat_reply(core, "w0", [], can_call=True) == (True, (), interval)
    core.handle(on.Tick(at_seconds=1.0 + 4 * interval))
    assert heartbeat_reply(core, "w0", [], can_call=True).known
    assert not heartbeat_reply(core, "w1", [], can_call=True).known
    core.handle(on.Tick(at_seconds=1.1 + 4 * interval))
    assert not heartbeat_reply(core, "w0", [], can_call=True).known
