"""What crosses between a service and its caller: values, and errors of our tree."""

from __future__ import annotations

import inspect
import logging
from typing import TYPE_CHECKING

import pytest

from downpour.base.errors import (
    DownpourError,
    IncompatiblePeer,
    ProtocolError,
    Refused,
    SharedDirectoryError,
    SpecError,
)
from downpour.base.values import BARE_NAME, AttemptId, Update
from downpour.network.rpc import ManagerClient, WorkerClient, services
from downpour.network.rpc.generated import Manager, Worker
from downpour.network.rpc.messages import Heartbeat
from downpour.network.rpc.services import ManagerService, WorkerService

if TYPE_CHECKING:
    from tests.network.rpc.conftest import Served


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
    named = {services.thrift_name(name): count for name, count in methods(service).items()}
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
