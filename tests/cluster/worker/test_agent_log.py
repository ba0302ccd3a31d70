"""What the log of a worker says about the tasks that fail or hang."""

import re
from collections.abc import Iterator
from threading import Event
from typing import Any

import pytest

from downpour.base.errors import UnfitWorker
from downpour.base.states import FailureKind
from downpour.base.values import Update
from downpour.cluster.worker.attempt import TaskControl
from tests.cluster.worker.test_agent import PATIENCE_SECONDS, UPDATE, Office, at_work, task


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
