"""What the log of a worker says about the tasks that fail or hang."""

import re
from collections.abc import Iterator
from threading import Event
from typing import Any

import pytest

from downpour.base.errors import UnfitWorker
from downpour.base.states import FailureKind
from downpour.base.values import Update
from downpour.cluster.worker import agent
from downpour.cluster.worker.attempt import TaskControl
from tests.cluster.worker.test_agent import (
    PATIENCE_SECONDS,
    SNAPSHOT,
    UPDATE,
    Office,
    at_work,
    task,
    until_handed_over,
)


@pytest.fixture
def office(desk: Any) -> Iterator[Office]:
    """A registered worker."""
    with at_work(desk) as working:
        yield working


def test_only_unforeseen_errors_are_logged_with_their_traceback(
    desk: Any, office: Office, caplog: pytest.LogCaptureFixture
) -> None:
    """An error of this package's tree is one line."""

    def fail(_: TaskControl) -> Update:
        raise UnfitWorker("this worker trains on the cpu")

    office.work.act = fail
    office.client.train(task())
    kind = desk.manager.reports.get(timeout=PATIENCE_SECONDS)[1][0]
    assert kind is FailureKind.OTHER_CODE, "which costs the task no retry"
    said = [record for record in caplog.records if "trains on the cpu" in record.getMessage()]
    assert said
    assert not any(record.exc_info for record in said)


def test_a_step_that_does_not_end_is_told_with_its_place(
    desk: Any, office: Office, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """With the line of the user's code, which no library and no traceback shows; then seldom."""
    monkeypatch.setattr(office.agent, "_still_seconds", 0.05)
    goes_on = Event()

    def reads_forever(control: TaskControl) -> Update:
        control.begin(0, 2)
        control.advance(1)
        assert goes_on.wait(PATIENCE_SECONDS)
        return UPDATE

    office.work.act = reads_forever
    office.client.train(task())
    while not caplog.messages:
        desk.manager.beats.get(timeout=PATIENCE_SECONDS)
    goes_on.set()
    assert re.fullmatch(
        r"anna-taken: no step has ended for \d+ s \(test_agent_log\.py:\d+ in reads_forever\)",
        caplog.messages[0],
    )


def test_a_worker_that_should_leave_but_hangs_ends_its_process(
    desk: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """One whose step ends in that minute hands its task back and leaves."""
    monkeypatch.setattr(agent, "_STILL_SECONDS", 0.05)
    killed, goes_on = Event(), Event()

    def hangs(control: TaskControl) -> Update:
        del control
        assert goes_on.wait(PATIENCE_SECONDS)
        return UPDATE

    with at_work(desk, on_standstill=killed.set) as office:
        office.work.act = hangs
        office.client.train(task())
        office.work.began.get(timeout=PATIENCE_SECONDS)
        office.agent.leave()
        assert killed.wait(PATIENCE_SECONDS)
        goes_on.set()
    said = r"anna-taken: ends without its task, which ends no step \(test_agent_log.*in hangs\)"
    assert any(re.fullmatch(said, line) for line in caplog.messages)


def test_a_worker_whose_step_ends_leaves(desk: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing kills its process; another worker goes on from its snapshot."""
    monkeypatch.setattr(agent, "_STILL_SECONDS", 0.05)
    killed = Event()
    with at_work(desk, on_standstill=killed.set) as office:
        office.work.act = until_handed_over
        office.client.train(task())
        office.work.began.get(timeout=PATIENCE_SECONDS)
        office.agent.leave()
        assert desk.manager.reports.get(timeout=PATIENCE_SECONDS) == (task().id, SNAPSHOT)
        desk.manager.goodbyes.get(timeout=PATIENCE_SECONDS)
        assert not killed.wait(0.2)
