"""A record that grows becomes calls: of loggers, of `on_round` and of `on_event`."""

import dataclasses
import logging
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from downpour.base.errors import Unreachable
from downpour.base.states import ExperimentEvent, ExperimentState, TaskState
from downpour.experiments.following import (
    Announcer,
    Follower,
    Lines,
    LoggerTaker,
    RecordTaker,
    calling,
)
from downpour.network.rpc.messages import ExperimentSummary, Status, TaskStatus
from downpour.record import Result, RoundResult
from downpour.record.record import line_text, parse_lines
from downpour.record.record_lines import (
    CancelledLine,
    FailedLine,
    RecordLine,
    SubmittedLine,
    UpdatedLine,
    WorkerJoinedLine,
    WorkerLeftLine,
)
from downpour.record.rows import StepPoint
from downpour.show.loggers import LoggedRun

RECORDED = Path(__file__).parents[2] / "recorded"
LINES = (RECORDED / "gestures" / "record.jsonl").read_text().splitlines()
RESULT = Result.from_lines(LINES)
NAME = RESULT.experiment


class Log:
    """A logger that remembers its calls."""

    def __init__(self) -> None:
        self.runs: list[LoggedRun] = []
        self.epochs: list[RoundResult] = []
        self.results: list[Result] = []

    def begin(self, run: LoggedRun) -> None:
        self.runs.append(run)

    def log(self, epoch: RoundResult) -> None:
        self.epochs.append(epoch)

    def end(self, result: Result) -> None:
        self.results.append(result)


class StepLog(Log):
    """And the points of its steps."""

    def __init__(self) -> None:
        super().__init__()
        self.points: list[StepPoint] = []

    def log_steps(self, points: Sequence[StepPoint]) -> None:
        self.points += points


def growing(told: list[str]) -> Lines:
    """Return a record, as a client reads it, that ends where the list does."""
    return lambda _, from_line: told[from_line:]


def followed(lines: list[str], *takers: RecordTaker, ends: tuple[int, ...] = ()) -> None:
    """Follow a record that grows to each of these lengths, and then to its end."""
    with Follower(takers) as follower:
        for end in (*sorted(ends), len(lines)):
            follower.follow(NAME, growing(lines[:end]))


def without_costs(epochs: tuple[RoundResult, ...]) -> list[RoundResult]:
    """Return the evaluated epochs of a result, as they are known before the experiment ends."""
    return [dataclasses.replace(one, stragglers=None) for one in epochs if one.metrics]


@given(st.lists(st.integers(0, len(LINES)), max_size=4).map(tuple))
def test_however_a_record_grows_each_epoch_is_logged_once(ends: tuple[int, ...]) -> None:
    """With the numbers of the result, between one begin and one end."""
    log = Log()
    followed(LINES, LoggerTaker("log", log), ends=ends)
    assert log.epochs == without_costs(RESULT.epochs)
    assert [run.experiment for run in log.runs] == [NAME]
    assert log.results == [RESULT]


def test_what_a_restarted_manager_tells_again_is_logged_once() -> None:
    """Its record may have lines twice."""
    log = Log()
    followed([*LINES[:-1], *LINES[3:]], LoggerTaker("log", log))
    assert [epoch.epoch for epoch in log.epochs] == [1, 3]
    assert len(log.results) == 1


def test_epochs_of_a_resumed_experiment_count_on() -> None:
    """A logger gets the numbers that they have in the whole training, and what came before."""
    record = parse_lines(LINES)
    at, submitted = record[0]
    assert isinstance(submitted, SubmittedLine)
    spec = {**RESULT.spec, "rounds_before": 7}
    first = line_text(at, replace(submitted, spec=spec))
    log = Log()
    followed([first, *LINES[1:]], LoggerTaker("log", log, ("b-2", "a-1")))
    assert [(epoch.epoch, epoch.round) for epoch in log.epochs] == [(8, 8), (10, 10)]
    (run,) = log.runs
    assert (run.rounds_before, run.epochs_before, run.first) == (7, 7, "a-1")


@pytest.mark.parametrize("before", [0, 7])
def test_steps_are_logged_once_their_round_is_a_model(before: int) -> None:
    """As a mean over the shards' examples; a shorter task counts at the same share of its steps."""
    curves = {0: ((1.0, 2.0, 3.0, 4.0), (0.4, 0.3, 0.2, 0.1)), 1: ((4.0, 7.0), (0.4, 0.2))}

    def changed(line: RecordLine) -> RecordLine:
        if isinstance(line, SubmittedLine):
            return replace(line, spec={**RESULT.spec, "rounds_before": before})
        if isinstance(line, UpdatedLine):
            losses, rates = curves[line.shard]
            return replace(line, step_losses=losses, step_rates=rates)
        return line

    record = [line_text(at, changed(line)) for at, line in parse_lines(LINES)]
    log = StepLog()
    followed([*record[:-1], *record[3:]], LoggerTaker("log", log), ends=(9, 12))
    assert [point.step for point in log.points] == [*range(4 * before + 1, 4 * before + 13)]
    losses = [point.scalars["step/loss"] for point in log.points[:4]]
    assert losses == pytest.approx([6 / 3, 8 / 3, 13 / 3, 15 / 3])
    assert log.points[-1].scalars["step/learning_rate"] == pytest.approx(0.4 / 3)


def test_a_callback_that_raises_costs_no_training(caplog: pytest.LogCaptureFixture) -> None:
    """It is told once, and the other takers get everything."""
    calls: list[int] = []

    def broken(epoch: RoundResult) -> None:
        calls.append(epoch.epoch)
        raise RuntimeError("no")

    log = Log()
    with caplog.at_level(logging.WARNING):
        takers = LoggerTaker("on_round broken", calling(broken)), LoggerTaker("log", log)
        followed(LINES, *takers)
    assert (calls, len(log.epochs)) == ([1, 3], 2)
    said = "on_round broken raised RuntimeError: no; its later errors are not shown"
    assert [record.getMessage() for record in caplog.records] == [said]


def test_an_experiment_that_nobody_waits_for_any_longer_ends_its_log() -> None:
    """A run that is interrupted leaves no logger open."""
    log = Log()
    followed(LINES[:-1], LoggerTaker("log", log))
    assert [result.state for result in log.results] == ["running"]


def test_a_manager_that_is_gone_is_told_for_each_taker(caplog: pytest.LogCaptureFixture) -> None:
    """Once; the caller that waits for the experiment gets the error there."""

    def gone(*_: object) -> list[str]:
        raise Unreachable("127.0.0.1:1", "connection refused")

    with caplog.at_level(logging.WARNING), Follower([LoggerTaker("log", Log())]) as follower:
        for _ in range(2):
            follower.follow(NAME, gone)
    (said,) = [record.getMessage() for record in caplog.records]
    assert said.startswith("no more calls of log are made: 127.0.0.1:1 cannot be reached")


def announced(lines: list[str]) -> list[ExperimentEvent]:
    """Return the events of a record."""
    events: list[ExperimentEvent] = []
    with Follower([Announcer("on_event", events.append)]) as follower:
        follower.follow(NAME, growing(lines))
    return events


def test_the_events_of_a_record() -> None:
    """From the submission to the end, and workers that come and go."""
    joined = WorkerJoinedLine(worker="d", address="1.2.3.4:5", numeric_class="")
    left = WorkerLeftLine(worker="d", reason="no heartbeat", lost=True)
    # It registers again with a restarted manager, which is no news.
    more = [line_text(0.5, joined), line_text(1.0, joined), line_text(2.0, left)]
    events = announced([LINES[0], *more, *LINES[1:]])
    told = [(event.kind, event.worker) for event in events if event.worker in {"", "d"}]
    assert told == [
        ("submitted", ""),
        ("worker-joined", "d"),
        ("worker-lost", "d"),
        ("finished", ""),
    ]
    assert {event.experiment for event in events} == {NAME}
    assert {event.name for event in events} == {RESULT.name}
    assert events[-1].state is ExperimentState.FINISHED


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        (FailedLine(reason="why", asked_wrongly=False), "failed"),
        (CancelledLine(reason="why"), "cancelled"),
    ],
)
def test_an_end_without_a_model_has_its_reason(line: FailedLine | CancelledLine, kind: str) -> None:
    """As the record has it."""
    event = announced([*LINES[:4], line_text(9.0, line)])[-1]
    assert (event.kind, event.state, event.reason) == (kind, kind, "why")


@pytest.mark.parametrize(
    ("error", "kind", "reason"),
    [
        (RuntimeError("the cluster died"), "failed", "the cluster died"),
        (KeyboardInterrupt(), "cancelled", "the run was stopped"),
    ],
)
def test_a_run_that_breaks_off_is_an_event(error: BaseException, kind: str, reason: str) -> None:
    """Though its record never tells; one that has ended before stays as it is."""
    for lines, told in ((LINES[:4], (kind, reason)), (LINES, ("finished", ""))):
        events: list[ExperimentEvent] = []
        with suppress(type(error)), Follower([Announcer("f", events.append)]) as follower:
            follower.follow(NAME, growing(lines))
            raise error
        assert (events[-1].kind, events[-1].reason) == told


def test_an_experiment_that_waits_is_an_event() -> None:
    """By its status, which comes every second while nothing happens."""
    events: list[ExperimentEvent] = []
    now = [0.0]
    announcer = Announcer("on_event", events.append, lambda: now[0])
    summary = ExperimentSummary(
        experiment=NAME, name="e", state=ExperimentState.RUNNING, rounds_done=0, rounds_total=4
    )
    task = TaskStatus(
        shard=0, state=TaskState.PENDING, steps_done=0, steps_total=0, elapsed_seconds=0.0
    )
    for second in range(100):
        now[0] = float(second)
        announcer.see(Status(change=1, experiment=summary, tasks=(task,)))
    announcer.close()
    assert [event.kind for event in events] == ["waiting"]
    assert events[0].reason == "no worker is there, for 60 s"
