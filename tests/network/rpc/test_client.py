"""Each call of both clients against a real server: values, and errors of our tree."""

import inspect
import logging
from dataclasses import dataclass, field

import numpy as np
import pytest

from downpour.base.errors import (
    DownpourError,
    IncompatiblePeer,
    ProtocolError,
    Refused,
    SharedDirectoryError,
    SpecError,
)
from downpour.base.states import FailureKind
from downpour.base.values import BARE_NAME, AttemptId, NumericClass, PublishedFile, Update
from downpour.network.rpc import PROTOCOL, ManagerClient, WorkerClient, serve_worker, wire
from downpour.network.rpc.generated import Manager, Worker
from downpour.network.rpc.messages import (
    Heartbeat,
    HeartbeatReply,
    ManagerService,
    Registered,
    Registration,
    TaskMessage,
    WorkerInfo,
    WorkerService,
)
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


def methods(kind: type) -> dict[str, int]:
    """The public methods of a class, each with the number of its arguments."""
    return {
        name: len(inspect.signature(method).parameters)
        for name, method in inspect.getmembers(kind, inspect.isfunction)
        if not name.startswith("_") and name not in {"close", "call"}
    }


@pytest.mark.parametrize(
    ("service", "client", "generated"),
    [(ManagerService, ManagerClient, Manager.Iface), (WorkerService, WorkerClient, Worker.Iface)],
)
def test_service_client_and_protocol_agree(service: type, client: type, generated: type) -> None:
    """The same methods with as many arguments, in all three."""
    assert methods(service) == methods(client)
    named = {wire.thrift_name(name): count for name, count in methods(service).items()}
    assert named == methods(generated)


@pytest.mark.parametrize(
    "error",
    [
        SpecError("batch_size", 0, "1 or more"),
        SpecError("dataset", "a\nb 'c' \udc80 é", "digits, mnist, …"),
        SpecError("name", "x" * 10_000, "a shorter one"),
        SharedDirectoryError("/shared", "not the manager's"),
        Refused("experiment", "no such experiment"),
        Refused("task", "busy with another", busy=True),
        IncompatiblePeer("protocol 2, not 1"),
    ],
)
def test_an_error_of_the_tree_reaches_the_caller(manager: Served, error: DownpourError) -> None:
    """The caller raises the same kind of error with the same line, and the connection goes on."""

    def refuse(method: str) -> None:
        if method == "submit":
            raise error

    manager.service.before = refuse
    with manager.client() as client:
        with pytest.raises(type(error)) as caught:
            client.submit("spec")
        assert str(caught.value) == str(error)
        assert getattr(caught.value, "busy", None) == getattr(error, "busy", None)
        client.describe()


@pytest.mark.parametrize("error", [ZeroDivisionError("oh"), SystemExit(3), KeyboardInterrupt()])
def test_a_defect_is_logged_once_and_answered(
    manager: Served, error: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    """Not even an exit leaves the caller hanging, or ends the server."""

    def fail(method: str) -> None:
        if method == "submit":
            raise error

    manager.service.before = fail
    with manager.client() as client, caplog.at_level(logging.ERROR):
        with pytest.raises(
            ProtocolError, match="submit failed there; the log of the peer says why"
        ):
            client.submit("spec")
        client.describe()
    assert len(caplog.records) == 1
    assert caplog.records[0].exc_info is not None


def test_a_refusal_is_not_logged(manager: Served, caplog: pytest.LogCaptureFixture) -> None:
    """A user's mistake is an answer, not an event."""
    with manager.client() as client, caplog.at_level(logging.INFO), pytest.raises(SpecError):
        client.submit("nonsense")
    assert not caplog.records


def test_a_heartbeat_at_a_manager_that_stops_is_no_defect(
    manager: Served, heartbeat: Heartbeat, caplog: pytest.LogCaptureFixture
) -> None:
    """The call declares no refusal: the worker is turned away, with a line and no traceback."""

    def refuse(method: str) -> None:
        if method == "heartbeat":
            raise Refused("manager", "is stopping", busy=True)

    manager.service.before = refuse
    with manager.client() as client, caplog.at_level(logging.INFO):
        with pytest.raises(ProtocolError, match="heartbeat failed there"):
            client.heartbeat(heartbeat)
        client.describe()
    [told] = caplog.records
    assert told.exc_info is None
    assert "manager: is stopping" in told.getMessage()


def test_a_file_name_that_is_not_bare_never_gets_in(
    manager: Served, attempt: AttemptId, update: Update
) -> None:
    """The refusal names the field; the service never sees the call; others are served."""
    object.__setattr__(update.file, "name", "../model")
    manager.service.workers.append("w1")
    with manager.client() as client:
        with pytest.raises(SpecError, match=r"update\.file\.name"):
            client.report_update("w1", attempt, update)
        assert not manager.service.updates
        manager.assert_well()


@pytest.mark.parametrize("method", ["status", "results", "cancel"])
def test_an_experiment_that_is_no_bare_name_is_refused(manager: Served, method: str) -> None:
    """A plain argument is held to it as well, and the caller's version is not to blame."""
    with manager.client() as client, pytest.raises(SpecError) as refusal:
        getattr(client, method)("../other")
    assert refusal.value.field == "experiment"
    assert refusal.value.accepted == BARE_NAME


def test_a_wrong_heartbeat_is_answered(manager: Served, heartbeat: Heartbeat) -> None:
    """A call that declares no refusal still tells what was wrong."""
    object.__setattr__(heartbeat.running[0].attempt, "experiment", "a/b")
    with manager.client() as client:
        with pytest.raises(IncompatiblePeer, match=r"heartbeat\.running\[0\]\.attempt\.experiment"):
            client.heartbeat(heartbeat)
        client.describe()
