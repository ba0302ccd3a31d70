"""The token: which callers are served, what others hear, and what an attacker can do."""

import logging
import socket
from contextlib import AbstractContextManager, suppress
from threading import Thread

import pytest

from downpour.base.errors import ProtocolError, SpecError, Untrusted
from downpour.network.rpc import Address, ManagerClient, Trust, serve_manager
from downpour.network.rpc.server import Limits
from downpour.network.rpc.trust import OPEN
from tests.network.rpc.conftest import (
    PATIENCE_SECONDS,
    FakeManager,
    Served,
    called,
    go_between,
    guarded,
)

TOKEN = "the token of these tests"
HOLDER = Trust(token=TOKEN.encode())


def test_a_holder_of_the_token_is_served() -> None:
    """Again and again, over connections old and new."""
    with guarded(HOLDER) as manager, manager.client(trust=HOLDER) as client:
        assert [client.submit(name) for name in "ab"] == ["experiment-a", "experiment-b"]
        assert called(manager.server.address, HOLDER) == "0"


@pytest.mark.parametrize(
    ("caller", "line"),
    [
        (OPEN, "requires a token: name its file with --token-file, or put it into DOWNPOUR_TOKEN"),
        (Trust(token=b"another token than theirs"), "holds a different token than this side"),
    ],
)
def test_others_are_turned_away_in_one_line(
    caller: Trust, line: str, caplog: pytest.LogCaptureFixture
) -> None:
    """They learn what to change, nothing is carried out, and no log tells the token."""
    caplog.set_level(logging.DEBUG)
    with guarded(HOLDER) as manager:
        with pytest.raises(Untrusted) as refusal:
            called(manager.server.address, caller)
        assert str(refusal.value) == f"{manager.server.address} {line}"
        assert refusal.value.exit_status == 2
        assert called(manager.server.address, HOLDER) == "0"
    assert TOKEN not in caplog.text
    assert TOKEN not in repr(HOLDER)


def test_strangers_fill_no_log(caplog: pytest.LogCaptureFixture) -> None:
    """One line says that they are rejected, however many there are."""
    with guarded(HOLDER) as manager:
        for _ in range(20):
            with pytest.raises(Untrusted):
                called(manager.server.address, OPEN)
        assert called(manager.server.address, HOLDER) == "0"
    assert len([one for one in caplog.records if one.levelno >= logging.WARNING]) == 1


def test_a_holder_does_not_trust_a_manager_without_a_token() -> None:
    """It might be anybody; the holder says so before it has called anything."""
    with guarded(OPEN) as manager:
        with pytest.raises(Untrusted, match="has no token, so it cannot prove who it is"):
            called(manager.server.address, HOLDER)
        manager.assert_well()


def test_silent_strangers_keep_nobody_waiting() -> None:
    """A dozen of them say nothing; holders are served, and the silent lose their connections."""
    with guarded(HOLDER, Limits(handshake_seconds=0.3)) as manager:
        silent = [manager.raw() for _ in range(12)]
        assert called(manager.server.address, HOLDER) == "0"
        for sock in silent:
            with sock:
                assert sock.recv(1) == b""


def test_garbage_costs_a_stranger_its_connection() -> None:
    """Neither a proof that is none nor a frame of nothing gets an answer."""
    hello = b"DPT1" + bytes(32)
    for frames in ([b""], [b"GET / HTTP/1.1"], [hello, b""], [hello, bytes(32)], [hello, hello]):
        with guarded(HOLDER) as manager, manager.raw() as sock:
            for frame in frames:
                sock.sendall(len(frame).to_bytes(4, "big") + frame)
            with sock.makefile("rb") as answers:
                heard = answers.read()
            assert len(heard) in {0, 4 + 64}  # nothing, or the manager's own proof
            assert called(manager.server.address, HOLDER) == "0"


@pytest.mark.parametrize("begun", [b"", b"\0\0\0\x24DPT1" + bytes(32)])
def test_a_stranger_cannot_make_the_manager_remember_much(begun: bytes) -> None:
    """A message that is no first call is not waited for: many strangers would fill the memory."""
    with guarded(HOLDER, Limits(handshake_seconds=600)) as manager, manager.raw() as sock:
        sock.sendall(begun + (2**20).to_bytes(4, "big") + b"x")
        with sock.makefile("rb") as answers, suppress(ConnectionError):
            answers.read()
        assert called(manager.server.address, HOLDER) == "0"


def test_an_eavesdropper_does_not_see_the_token() -> None:
    """The conversation works through a go-between, and the token is not in it."""
    heard: list[bytes] = []
    with guarded(HOLDER) as manager, listening(manager, heard) as address:
        with ManagerClient(address, trust=HOLDER) as client:
            assert client.submit("secret") == "experiment-secret"
        assert TOKEN.encode() not in b"".join(heard)
        assert b"secret" in b"".join(heard)


def listening(manager: Served, heard: list[bytes]) -> AbstractContextManager[Address]:
    """Return a go-between that notes what callers say."""

    def note(data: bytes) -> list[bytes]:
        heard.append(data)
        return [data]

    return go_between(manager.server.address, there=note)


def test_an_altered_call_is_not_carried_out() -> None:
    """Whoever passes the handshake on and changes a message costs it the connection."""

    def alter(data: bytes) -> list[bytes]:
        return [data.replace(b"harmless", b"harmful!")]

    with guarded(HOLDER) as manager, go_between(manager.server.address, there=alter) as address:
        with ManagerClient(address, trust=HOLDER) as client, pytest.raises(ProtocolError):
            client.submit("harmless")
        assert manager.service.specs == {}


def test_a_repeated_call_is_not_carried_out() -> None:
    """A message counts once, however often it is sent."""

    def repeat(data: bytes) -> list[bytes]:
        return [data] * (2 if b"once" in data else 1)

    times: list[str] = []
    with guarded(HOLDER) as manager, go_between(manager.server.address, there=repeat) as address:
        manager.service.before = times.append
        with ManagerClient(address, trust=HOLDER) as client:
            client.submit("once")
    assert times == ["submit"]


def test_a_replayed_conversation_is_rejected() -> None:
    """Nonces are new for each connection."""
    heard: list[bytes] = []
    with guarded(HOLDER) as manager:
        with listening(manager, heard) as address, ManagerClient(address, trust=HOLDER) as client:
            client.submit("recorded")
        manager.service.specs.clear()
        with manager.raw() as sock:
            sock.sendall(b"".join(heard))
            with sock.makefile("rb") as answers:
                answers.read()
        assert manager.service.specs == {}


def test_a_server_that_sends_a_proof_back_proves_nothing() -> None:
    """Without the token, the answer to a hello cannot be made from the hello."""
    listener = socket.create_server(("127.0.0.1", 0))

    def reflect() -> None:
        caller, _ = listener.accept()
        with caller:
            hello = caller.recv(65536)
            caller.sendall((64).to_bytes(4, "big") + hello[-32:] * 2)
            caller.recv(65536)

    thread = Thread(target=reflect)
    thread.start()
    with pytest.raises(Untrusted, match="holds a different token"):
        called(Address(*listener.getsockname()), HOLDER)
    thread.join(PATIENCE_SECONDS)
    listener.close()


@pytest.mark.parametrize("host", ["0.0.0.0", "::"])
def test_nothing_is_served_to_other_machines_without_trust(host: str) -> None:
    """The refusal names what is needed."""
    with pytest.raises(SpecError, match=r"needs a token .* because other machines") as refusal:
        serve_manager(FakeManager(), host, 0)
    assert refusal.value.field == "host"
