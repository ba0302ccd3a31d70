"""A server between hostile peers, its limits, and its end."""

import errno
import logging
import socket
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from queue import SimpleQueue
from random import Random
from threading import Event, Thread, current_thread
from time import monotonic
from typing import Any

import pytest
from thrift import protocol
from thrift.protocol.TBinaryProtocol import TBinaryProtocol
from thrift.Thrift import TApplicationException, TMessageType, TType
from thrift.transport.TTransport import TMemoryBuffer

from downpour.base.errors import SpecError, Unreachable
from downpour.network.discovery import awaiting
from downpour.network.rpc import Address, ManagerClient, Trust, frames, serve_manager
from downpour.network.rpc.frames import FRAME_BYTES_MAX
from downpour.network.rpc.server import Limits, Sparing
from tests.network.rpc.conftest import FakeManager, Gate, Serve, Served

BOMB = 2**31 - 1


def message(method: str, arguments: bytes) -> bytes:
    """A call in a frame, whatever its arguments."""
    buffer = TMemoryBuffer()
    TBinaryProtocol(buffer).writeMessageBegin(method, TMessageType.CALL, 7)
    body: bytes = buffer.getvalue() + arguments
    return len(body).to_bytes(4, "big") + body


def field(kind: int, number: int, content: bytes) -> bytes:
    """One field of a struct."""
    return bytes([kind]) + number.to_bytes(2, "big") + content


def elements(kind: int, count: int) -> bytes:
    """The head of a list."""
    return bytes([kind]) + count.to_bytes(4, "big")


HOSTILE = {
    "text": b"GET / HTTP/1.1\r\nHost: here\r\n\r\n",
    "noise": Random(1).randbytes(4096),
    "negative frame": b"\xff\xff\xff\xfe",
    "oversized frame": (FRAME_BYTES_MAX + 1).to_bytes(4, "big"),
    "empty frame": b"\0\0\0\0",
    "noise in a frame": b"\0\0\1\0" + Random(2).randbytes(256),
    "half a frame": b"\0\0\1\0abc",
    "half a call": message("submit", field(TType.STRING, 1, b"\0\0\1\0abc") + b"\0"),
    "negative string": message("submit", field(TType.STRING, 1, b"\xff\xff\xff\xff") + b"\0"),
    "unknown type": message("submit", field(99, 1, b"abc") + b"\0"),
    "nested structs": message("heartbeat", field(TType.STRUCT, 9, b"") * 100_000),
    "nested lists": message("heartbeat", field(TType.LIST, 9, elements(TType.LIST, 1) * 100_000)),
    "list without end": message(
        "heartbeat", field(TType.STRUCT, 1, field(TType.LIST, 2, elements(TType.STRUCT, BOMB)))
    ),
    "wrong list": message(
        "heartbeat",
        field(TType.STRUCT, 1, field(TType.LIST, 2, elements(TType.I32, 1) + b"abcd\0\0")),
    ),
}

ANSWERED = {
    "unknown enum": (
        message("reportFailure", field(TType.I32, 3, b"\0\0\0\x63") + b"\0"),
        TApplicationException.PROTOCOL_ERROR,
    ),
    "unknown method": (message("explode", b"\0"), TApplicationException.UNKNOWN_METHOD),
    "large unknown method": (
        message("explode", bytes(10_000_000)),
        TApplicationException.UNKNOWN_METHOD,
    ),
    "no argument": (message("heartbeat", b"\0"), TApplicationException.PROTOCOL_ERROR),
    "wrong type": (
        message("heartbeat", field(TType.I32, 1, b"abcd") + b"\0"),
        TApplicationException.PROTOCOL_ERROR,
    ),
}


def attack(manager: Served, sent: bytes) -> None:
    """Send bytes, and read until the server hangs up."""
    with manager.raw() as hostile, suppress(ConnectionError):
        hostile.sendall(sent)
        while hostile.recv(65536):
            pass


@pytest.mark.parametrize("sent", HOSTILE.values(), ids=HOSTILE)
def test_hostile_bytes_cost_the_sender_alone(serve: Serve, sent: bytes) -> None:
    """The sender loses its connection; a friend's goes on, and strangers are served."""
    manager = serve(Limits(frame_seconds=0.2))
    with manager.client() as friend:
        friend.describe()
        attack(manager, sent)
        assert friend.submit("friend") == "experiment-friend"
        manager.assert_well()


def test_hostile_bytes_gain_nothing_from_the_pure_protocol(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without thrift's C extension, the server loses the same connections, and no others."""
    monkeypatch.delattr(protocol, "fastbinary", raising=False)
    monkeypatch.setitem(sys.modules, "thrift.protocol.fastbinary", None)
    assert not frames.is_accelerated()
    manager = serve(Limits(frame_seconds=0.2))
    with manager.client() as friend:
        for sent in HOSTILE.values():
            attack(manager, sent)
        assert friend.submit("friend") == "experiment-friend"
        manager.assert_well()


@pytest.mark.parametrize(("sent", "kind"), ANSWERED.values(), ids=ANSWERED)
def test_an_impossible_call_is_answered(manager: Served, sent: bytes, kind: int) -> None:
    """An unknown method or wrong arguments get an exception, and the connection stays usable."""
    with manager.raw() as peer:
        for _ in range(2):
            peer.sendall(sent)
            answer = TBinaryProtocol(TMemoryBuffer(peer.recv(65536)[4:]))
            assert answer.readMessageBegin()[1:] == (TMessageType.EXCEPTION, 7)
            told = TApplicationException()
            told.read(answer)
            assert told.type == kind
        manager.assert_well()


def test_wrong_arguments_are_one_line_of_the_log(
    manager: Served, caplog: pytest.LogCaptureFixture
) -> None:
    """A peer must not be able to fill the log with tracebacks."""
    with manager.raw() as peer:
        peer.sendall(ANSWERED["no argument"][0])
        peer.recv(65536)
    (logged,) = caplog.records
    assert logged.getMessage().endswith("rejects a call of heartbeat: heartbeat = None: required")
    assert logged.exc_info is None


@pytest.mark.slow
def test_a_peer_that_does_not_read_is_dropped(serve: Serve) -> None:
    """An answer that nobody takes does not hold its thread."""
    manager = serve(Limits(frame_seconds=0.2))
    manager.service.specs = {f"e{number}": "x" * 1000 for number in range(9_000)}
    with manager.raw() as hostile:
        hostile.sendall(message("listExperiments", b"\0") * 3)
        manager.assert_well()
        with suppress(ConnectionError):
            while True:
                hostile.sendall(message("describe", b"\0") * 1000)


def test_an_idle_connection_is_closed(serve: Serve) -> None:
    """Who says nothing for long enough is let go."""
    manager = serve(Limits(idle_seconds=0.1))
    with manager.raw() as idle:
        assert idle.recv(1) == b""


def test_there_is_a_limit_of_connections(serve: Serve) -> None:
    """One too many is closed unanswered; when another leaves, there is room again."""
    manager = serve(Limits(connections=2))
    with manager.client() as first, manager.client() as second, manager.client() as third:
        first.describe()
        second.describe()
        with pytest.raises(Unreachable, match=r"closed|reset"):
            third.describe()
        first.close()
        with manager.client() as patient:
            awaiting(20)(patient.describe)
        second.describe()


def test_a_worker_beyond_the_limit_reports_over_its_only_connection(serve: Serve) -> None:
    """While its heartbeat has that one, a report is refused; the next try goes through."""
    manager = serve(Limits(connections=1))
    gate = manager.service.before = Gate()
    with manager.client() as worker, ThreadPoolExecutor() as threads:
        heartbeat = threads.submit(worker.describe)
        assert gate.entered.wait(20)
        with pytest.raises(Unreachable, match=r"closed|reset"):
            worker.submit("report")
        gate.release.set()
        heartbeat.result(20)
        assert worker.submit("report") == "experiment-report"


def test_a_server_without_descriptors_waits_for_one(
    fake: FakeManager, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """`accept` fails at once then, so the server pauses, and says why; the caller waits."""
    accept, tries = socket.socket.accept, []

    def scarce(listener: socket.socket) -> Any:
        tries.append(monotonic())
        if len(tries) < 3:
            raise OSError(errno.EMFILE, "Too many open files")
        return accept(listener)

    monkeypatch.setattr(socket.socket, "accept", scarce)
    with serve_manager(fake, "127.0.0.1", 0) as server, ManagerClient(server.address) as client:
        client.describe()
    assert tries[2] - tries[0] >= 0.15
    [line] = [one.getMessage() for one in caplog.records]
    assert line.endswith("cannot accept: [Errno 24] Too many open files")


def test_strangers_make_room_for_friends(serve: Serve) -> None:
    """Connections that never made a call end for one that may; those that made one go on."""
    manager = serve(Limits(connections=4))
    with manager.client() as friend, manager.client() as other:
        friend.describe()
        silent = [manager.raw() for _ in range(20)]
        other.describe()
        assert [one.recv(1) for one in silent[:17]] == [b""] * 17
        friend.describe()
        for one in silent:
            one.close()


def test_a_crowd_fills_no_log(serve: Serve, caplog: pytest.LogCaptureFixture) -> None:
    """One line says that connections are closed, however many there are."""
    manager = serve(Limits(connections=0))
    for _ in range(20):
        with manager.raw() as one:
            assert one.recv(1) == b""
    [record] = caplog.records
    assert "without an answer: it is stopping, or full" in record.getMessage()


def test_a_line_tells_how_many_were_left_out(caplog: pytest.LogCaptureFixture) -> None:
    """One of each level in ten seconds."""
    now = 0.0
    tell = Sparing(logging.getLogger("told"), lambda: now)
    for number, now in enumerate((1, 2, 10, 11, 30)):  # noqa: B007 - the clock reads it
        tell(logging.WARNING, "stranger %d", number)
        tell(logging.ERROR, "other")
    lines = [one.getMessage() for one in caplog.records if one.levelno == logging.WARNING]
    assert lines == ["stranger 0", "stranger 3 (after 2 more such lines)", "stranger 4"]
    assert len(caplog.records) == 2 * len(lines)


def test_stopping_lets_the_call_in_flight_finish(manager: Served) -> None:
    """A call that has begun is answered; new ones are not, and idle connections are closed."""
    entered, release = Event(), Event()

    def hold(method: str) -> None:
        if method == "submit":
            entered.set()
            assert release.wait(20)

    manager.service.before = hold
    with manager.raw() as idle, manager.client() as client, ThreadPoolExecutor() as threads:
        answer = threads.submit(client.submit, "late")
        assert entered.wait(20)
        stopped = threads.submit(manager.server.stop, 20)
        assert idle.recv(1) == b""
        assert not stopped.done()
        with pytest.raises(Unreachable), manager.client() as stranger:
            stranger.describe()
        release.set()
        assert answer.result(20) == "experiment-late"
        stopped.result(20)


def test_stopping_does_not_wait_for_ever(manager: Served) -> None:
    """A call that outlasts the grace time loses its connection."""
    gate = manager.service.before = Gate()
    with manager.client() as client, ThreadPoolExecutor() as threads:
        answer = threads.submit(client.describe)
        assert gate.entered.wait(20)
        manager.server.stop(grace_seconds=0.05)
        with pytest.raises(Unreachable):
            answer.result(20)
        gate.release.set()


def test_a_call_may_stop_the_server_that_serves_it(manager: Served) -> None:
    """It does not wait for itself, and is answered; stopping twice is harmless."""
    manager.service.before = lambda _: manager.server.stop(grace_seconds=60)
    with manager.client() as client:
        client.describe()
        with pytest.raises(Unreachable):
            client.describe()
    manager.server.stop()


def test_the_end_of_a_connection_is_told_in_its_own_thread(fake: FakeManager) -> None:
    """So whoever carried out the calls over it knows whose it was; the server's own end is none."""
    callers, ended = SimpleQueue[Thread](), SimpleQueue[Thread]()
    fake.before = lambda _: callers.put(current_thread())
    server = serve_manager(fake, "127.0.0.1", 0, on_end=lambda: ended.put(current_thread()))
    with server, ManagerClient(server.address) as staying:
        staying.describe()
        with ManagerClient(server.address) as leaving:
            leaving.describe()
        stays, leaves = callers.get(), callers.get()
        assert ended.get(timeout=20) is leaves
        server.stop()
        stays.join(20)
        assert ended.empty()


def test_a_failing_end_of_a_connection_fails_alone(
    fake: FakeManager, caplog: pytest.LogCaptureFixture
) -> None:
    """It is logged, and the server serves on."""
    failing = SimpleQueue[Thread]()

    def fail() -> None:
        failing.put(current_thread())
        raise RuntimeError("no such luck")

    with serve_manager(fake, "127.0.0.1", 0, on_end=fail) as server:
        for _ in range(2):
            with ManagerClient(server.address) as client:
                client.describe()
            failing.get(timeout=20).join(20)
    assert "no such luck" in caplog.text


@pytest.mark.parametrize(
    ("host", "port", "field"), [("no.such.host.invalid", 0, "host"), ("127.0.0.1", 70000, "port")]
)
def test_a_place_that_cannot_be_listened_at(
    manager: Served, host: str, port: int, field: str
) -> None:
    """The field that is wrong is named."""
    with pytest.raises(SpecError) as caught:
        serve_manager(manager.service, host, port)
    assert caught.value.field == field


@pytest.fixture
def six() -> str:
    """The IPv6 loopback, where there is one."""
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("this machine has no IPv6 loopback")
    return "::1"


def test_ipv6_is_served(manager: Served, six: str) -> None:
    """An address of six kinds of numbers is as good as one of four."""
    with serve_manager(manager.service, six, 0) as server:
        assert str(server.address).startswith("[::1]:")
        with ManagerClient(server.address) as client:
            client.describe()


def test_every_interface_of_both_kinds(manager: Served, six: str) -> None:
    """`::` listens on IPv4 as well."""
    trust = Trust(token=b"sixteen or more characters")
    with serve_manager(manager.service, "::", 0, trust=trust) as server:
        for host in (six, "127.0.0.1"):
            with ManagerClient(Address(host, server.address.port), trust=trust) as client:
                client.describe()
