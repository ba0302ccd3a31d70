"""Each call of both clients, against a real server: what goes in comes out."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import pytest

from downpour.base.errors import Refused
from downpour.base.states import FailureKind
from downpour.base.values import AttemptId, NumericClass, PublishedFile, Update
from downpour.network.rpc import PROTOCOL, WorkerClient, serve_worker
from downpour.network.rpc.messages import (
    Heartbeat,
    HeartbeatReply,
    Registered,
    Registration,
    TaskMessage,
    WorkerInfo,
)

if TYPE_CHECKING:
    from tests.network.rpc.conftest import Served

REGISTRATION = Registration(
    name="w1",
    host="127.0.0.1",
    port=4000,
    protocol=PROTOCOL,
    version="0",
    presence="token",
    numeric_class=NumericClass(torch="2", device="cpu", instruction_set="AVX2"),
    hostname="here",
    pid=1,
)


def test_a_workers_life(
    manager: Served, attempt: AttemptId, update: Update, heartbeat: Heartbeat
) -> None:
    """Register, send a heartbeat, report an update and a failure, leave."""
    with manager.client() as client:
        assert client.describe().protocol == PROTOCOL
        assert not client.heartbeat(heartbeat).known
        assert client.register_worker(REGISTRATION) == Registered(worker="w1")
        assert client.heartbeat(heartbeat) == HeartbeatReply(known=True, unwanted=(attempt,))
        client.report_update("w1", attempt, update)
        client.report_failure("w1", attempt, FailureKind.OUT_OF_MEMORY, "too large")
        client.leave("w1", "told to")
    assert manager.service.updates == {attempt: update}
    assert manager.service.failures == {attempt: (FailureKind.OUT_OF_MEMORY, "w1: too large")}
    assert manager.service.workers == []


def test_an_experiments_life(manager: Served) -> None:
    """Submit, look, read results, say what is done to a worker, cancel."""
    with manager.client() as client:
        experiment = client.submit("spec")
        (summary,) = client.list_experiments()
        assert summary.experiment == experiment
        assert client.status().experiment is None
        assert client.status(experiment, 4).change == 5
        assert client.results(experiment, 7).next_line == 8
        client.disturbed(experiment, "w1", "is killed")
        assert manager.service.disturbances == [(experiment, "w1", "is killed")]
        client.cancel(experiment)
        assert manager.service.cancelled == {experiment}
        with pytest.raises(Refused, match="no experiment is called other") as refused:
            client.results("other")
        assert refused.value.value == "other"


def test_experiments_are_listed_in_pages(manager: Served) -> None:
    """From the newest on: a directory holds more of them than a message."""
    with manager.client() as client:
        first, second, third = map(client.submit, "abc")
        newest = client.list_experiments(limit=2)
        assert [one.experiment for one in newest] == [second, third]
        assert [one.experiment for one in client.list_experiments(second)] == [first]
        assert client.list_experiments(first) == ()


def test_the_time_asked_to_wait_is_added_to_the_deadline(manager: Served) -> None:
    """A call that asks the manager to wait does not time out for having been served."""
    asked: list[str] = []
    manager.service.before = asked.append
    with manager.client(timeout_seconds=0.5) as client:
        client.status(wait_seconds=20)
        client.status("", 0, 0.25)
    assert asked == ["status, waiting 20 s", "status, waiting 0.25 s"]


@dataclass
class FakeWorker:
    """Takes one task, remembers the rest."""

    tasks: list[TaskMessage] = field(default_factory=list)
    heard: list[object] = field(default_factory=list)

    def ping(self) -> WorkerInfo:
        """What runs is the task it took."""
        running = self.tasks[0].id if self.tasks else None
        return WorkerInfo(protocol=PROTOCOL, version="0", name="w1", running=running)

    def train(self, task: TaskMessage) -> None:
        if self.tasks:
            raise Refused("task", f"busy with {self.tasks[0].id}", busy=True)
        self.tasks.append(task)

    def cancel(self, attempt: AttemptId) -> None:
        self.heard.append(("cancel", attempt))

    def hand_over(self, attempt: AttemptId) -> None:
        self.heard.append(("hand over", attempt))

    def drain(self) -> None:
        self.heard.append("drain")


def test_a_tasks_life(attempt: AttemptId, file: PublishedFile) -> None:
    """A worker takes a task with its indices, refuses a second, and hears the rest."""
    indices = np.array([5, 70_000, 1])
    task = TaskMessage(id=attempt, spec=file, dataset="digits", model=file, indices=indices)
    worker = FakeWorker()
    with serve_worker(worker, "127.0.0.1", 0) as server, WorkerClient(server.address) as client:
        assert client.ping().running is None
        client.train(task)
        assert client.ping().running == attempt
        with pytest.raises(Refused, match="busy") as caught:
            client.train(task)
        assert caught.value.busy
        client.cancel(attempt)
        client.hand_over(attempt)
        client.drain()
    (taken,) = worker.tasks
    assert isinstance(taken.indices, np.ndarray)
    assert taken.indices.tolist() == [5, 70_000, 1]
    assert worker.heard == [("cancel", attempt), ("hand over", attempt), "drain"]
