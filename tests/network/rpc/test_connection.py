"""A peer that is slow, mute, restarted or not what it seems, down to its frames."""

import errno
import socket
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from threading import Event, Thread
from time import monotonic
from typing import Any

import pytest
from thrift.protocol.TBinaryProtocol import TBinaryProtocol
from thrift.Thrift import TMessageType
from thrift.transport.TTransport import TMemoryBuffer

from downpour.base.errors import DeadlineExceeded, IncompatiblePeer, Unreachable
from downpour.network.rpc import Address, ManagerClient, frames, serve_manager
from tests.network.rpc.conftest import Gate, Served


@contextmanager
def neighbour(behave: Callable[[socket.socket], None]) -> Iterator[Address]:
    """Somebody who takes connections one by one and is not a manager."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        while True:
            try:
                sock, _ = listener.accept()
            except OSError:
                return
            with sock:
                behave(sock)

    thread = Thread(target=serve)
    thread.start()
    try:
        yield Address(*listener.getsockname())
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join()


def test_a_trickled_answer_does_not_outlive_the_deadline() -> None:
    """Each byte comes in time, the answer does not; and the trickler is hung up on."""
    hung_up = Event()

    def trickle(sock: socket.socket) -> None:
        sock.recv(65536)
        sock.sendall(b"\0\1\0\0")
        try:
            while not hung_up.wait(0.02):
                sock.sendall(b"x")
        except OSError:
            hung_up.set()

    with neighbour(trickle) as address, ManagerClient(address, timeout_seconds=0.3) as client:
        with pytest.raises(DeadlineExceeded, match=r"describe took longer than 0\.3 s"):
            client.describe()
        assert hung_up.wait(20)


def test_after_a_deadline_the_last_answer_never_comes(manager: Served) -> None:
    """The connection of a call that was given up is not used again."""
    gate = manager.service.before = Gate()
    with manager.client(timeout_seconds=0.2) as client:
        with pytest.raises(DeadlineExceeded):
            client.describe()
        gate.release.set()
        assert client.submit("second") == "experiment-second"


def framed(kind: int, method: str, sequence: int, result: bytes = b"\0") -> bytes:
    """An answer, as a peer of ill will or another mind might frame it."""
    buffer = TMemoryBuffer()
    TBinaryProtocol(buffer).writeMessageBegin(method, kind, sequence)
    body: bytes = buffer.getvalue() + result
    return len(body).to_bytes(4, "big") + body


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "not Thrift"),
        (b"\0\0\0\4junk", "cannot read the answer"),
        (b"\0\0\0\0", "cannot read the answer"),
        (framed(TMessageType.REPLY, "describe", 9), "belongs to 'describe'"),
        (framed(TMessageType.REPLY, "leave", 1), "belongs to 'leave'"),
        (framed(TMessageType.CALL, "describe", 1), "a message of kind 1"),
        (framed(TMessageType.REPLY, "describe", 1), "with an empty result"),
        (framed(TMessageType.REPLY, "describe", 1, b"\x0c\0\0\0\0"), r"describe\.protocol = None"),
    ],
)
def test_a_wrong_answer_is_an_incompatible_peer(answer: bytes, told: str) -> None:
    """Another protocol, another call's answer, an echo or an empty result: an incompatible peer."""

    def babble(sock: socket.socket) -> None:
        sock.recv(65536)
        sock.sendall(answer)

    with (
        neighbour(babble) as address,
        ManagerClient(address) as client,
        pytest.raises(IncompatiblePeer, match=told),
    ):
        client.describe()


def test_a_stopped_server_is_unreachable(manager: Served) -> None:
    """The error names the address and the reason, in one line."""
    address = manager.server.address
    manager.server.stop()
    with ManagerClient(address) as client, pytest.raises(Unreachable, match=str(address)):
        client.describe()


@pytest.mark.parametrize("host", ["no.such.host.invalid", "a..b"])
def test_a_name_that_does_not_resolve_is_unreachable(host: str) -> None:
    """A name that does not resolve is told like any other absence."""
    with ManagerClient(Address(host, 9090)) as client, pytest.raises(Unreachable, match=host):
        client.describe()


def test_a_restarted_manager_is_found_again(manager: Served) -> None:
    """Every pooled connection is stale by then; the caller does not notice."""
    address = manager.server.address
    with manager.client() as client, ThreadPoolExecutor(4) as threads:
        list(threads.map(client.submit, map(str, range(20))))
        manager.server.stop()
        with serve_manager(manager.service, address.host, address.port):
            assert client.submit("again") == "experiment-again"


def test_many_threads_may_share_a_client(manager: Served) -> None:
    """Fifty threads get fifty answers, each its own, over a few connections."""
    with manager.client(timeout_seconds=60) as client, ThreadPoolExecutor(50) as threads:
        specs = [str(number) for number in range(500)]
        assert list(threads.map(client.submit, specs)) == [f"experiment-{n}" for n in specs]


def test_waiting_for_a_connection_counts(manager: Served) -> None:
    """A call that finds all connections taken gives up at its deadline, too."""
    gate = manager.service.before = Gate()
    with (
        manager.client(timeout_seconds=0.3, connections_max=1) as client,
        ThreadPoolExecutor() as threads,
    ):
        first = threads.submit(client.status, "", 0, 20.0)
        assert gate.entered.wait(20)
        with pytest.raises(DeadlineExceeded, match="no free connection"):
            client.describe()
        gate.release.set()
        first.result(20)


def test_closing_a_client_ends_its_calls(manager: Served) -> None:
    """Who waits on a closed client is told, and so is who comes after."""
    gate = manager.service.before = Gate()
    client = manager.client()
    with ThreadPoolExecutor() as threads:
        answer = threads.submit(client.describe)
        assert gate.entered.wait(20)
        client.close()
        with pytest.raises(Unreachable):
            answer.result(20)
        gate.release.set()
    with pytest.raises(Unreachable, match="closed"):
        client.describe()


def test_a_caller_without_descriptors_waits_for_one(
    manager: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It knows nothing of the peer, so it does not call it unreachable; it tries again."""
    connect, tries = socket.create_connection, []

    def scarce(*address: Any, **options: Any) -> socket.socket:
        tries.append(address)
        if len(tries) < 3:
            raise OSError(errno.EMFILE, "Too many open files")
        return connect(*address, **options)

    monkeypatch.setattr(socket, "create_connection", scarce)
    with manager.client() as client:
        client.describe()
    tries.clear()
    with (
        manager.client(timeout_seconds=0.05) as client,
        pytest.raises(DeadlineExceeded, match="this process may not open more connections"),
    ):
        client.describe()


Pair = tuple[socket.socket, frames.Channel]


@pytest.fixture
def pair() -> Iterator[Pair]:
    """A raw end, and a channel at the other."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        raw = socket.create_connection(listener.getsockname())
        channel = frames.Channel(listener.accept()[0])
    yield raw, channel
    raw.close()
    channel.close()


def soon() -> float:
    """A deadline that a healthy test never meets."""
    return monotonic() + 20


def test_frames_arrive_in_order(pair: Pair) -> None:
    """Two frames in one piece are two frames, and an empty one is a frame."""
    raw, channel = pair
    raw.sendall(b"\0\0\0\3abc\0\0\0\0\0\0\0\1d")
    assert [channel.receive(soon()) for _ in range(3)] == [b"abc", b"", b"d"]


def test_a_frame_reads_as_it_was_sent(pair: Pair) -> None:
    """Length first, most significant byte first."""
    raw, channel = pair
    channel.send(b"abc", soon())
    assert raw.recv(100) == b"\0\0\0\3abc"


@pytest.mark.parametrize("header", [b"\xff\xff\xff\xff", b"\x01\x00\x00\x01", b"GET "])
def test_an_impossible_length_is_no_frame(pair: Pair, header: bytes) -> None:
    """Negative, over the limit, or not Thrift at all: nothing more is read."""
    raw, channel = pair
    raw.sendall(header)
    with pytest.raises(IncompatiblePeer, match="not Thrift"):
        channel.receive(soon())


def test_half_a_frame_ends_at_its_deadline(pair: Pair) -> None:
    """Silence after the first bytes is a TimeoutError."""
    raw, channel = pair
    raw.sendall(b"\0\0\0\3a")
    with pytest.raises(TimeoutError):
        channel.receive(monotonic() + 0.05)


def test_a_frame_has_its_own_time_once_it_began(pair: Pair) -> None:
    """A patient reader of first bytes is not patient with the rest."""
    raw, channel = pair
    raw.sendall(b"\0\0")
    with pytest.raises(TimeoutError):
        channel.receive(soon(), frame_seconds=0.05)


@pytest.mark.parametrize(("sent", "midway"), [(b"", False), (b"\0", True), (b"\0\0\0\3a", True)])
def test_a_closed_peer_is_told_apart_from_a_torn_message(
    pair: Pair, sent: bytes, *, midway: bool
) -> None:
    """Between frames a peer may go; in the middle of one it may not."""
    raw, channel = pair
    raw.sendall(sent)
    raw.close()
    with pytest.raises(frames.Closed) as caught:
        channel.receive(soon())
    assert caught.value.midway is midway


def test_an_oversized_frame_is_never_sent(pair: Pair) -> None:
    """What the peer would drop does not leave."""
    _, channel = pair
    with pytest.raises(ValueError, match="over"):
        channel.send(bytes(frames.FRAME_BYTES_MAX + 1), soon())
