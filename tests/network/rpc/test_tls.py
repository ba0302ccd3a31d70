"""Mutual TLS: who is let in under which name, and what those do who are not.

Real certificates, real sockets. Whoever is refused learns why in one line, nothing of his is
carried out, and everybody else is served as before.
"""

import logging
import socket
import ssl
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from threading import Event, Thread
from time import monotonic
from typing import Any

import pytest

from downpour.base.errors import DeadlineExceeded, ProtocolError, Unreachable, Untrusted
from downpour.cluster.certificates import issue
from downpour.host.paths import Credentials
from downpour.network.rpc import Address, ManagerClient, Trust
from downpour.network.rpc.frames import Channel, Closed
from downpour.network.rpc.server import Limits
from downpour.network.rpc.trust import OPEN
from tests.network.rpc.conftest import PATIENCE_SECONDS, Gate, called, go_between, guarded

TOKEN = "the token of these tests"
CALLS_ON = "127.0.0.1"


@dataclass(frozen=True)
class Authorities:
    """Folders of certificates: of our authority, and of somebody else's."""

    ours: Path
    theirs: Path

    def trust(self, name: str, *, of: str = "ours", token: str = "") -> Trust:
        """What the machine of that name was given, by its own authority or by the other."""
        folder = self.ours if of == "ours" else self.theirs
        return Trust.load(
            Credentials(
                token=token,
                tls_cert=str(folder / f"{name}.pem"),
                tls_key=str(folder / f"{name}-key.pem"),
                tls_ca=str(self.ours / "ca.pem"),
            )
        )


@pytest.fixture(scope="module")
def authorities(tmp_path_factory: pytest.TempPathFactory) -> Authorities:
    """Machines with names and without, in the present and in the past."""
    ours, theirs = (tmp_path_factory.mktemp(name) for name in ("ours", "theirs"))
    now = datetime.now(UTC)
    issue([f"late,{CALLS_ON},localhost"], ours, days=1, now=now - timedelta(days=2))
    issue([f"early,{CALLS_ON},localhost"], ours, days=9, now=now + timedelta(days=2))
    issue([f"server,{CALLS_ON},localhost", "worker", "other,10.9.9.9"], ours, days=9)
    issue([f"server,{CALLS_ON},localhost"], theirs, days=9)
    return Authorities(ours, theirs)


@pytest.mark.parametrize("token", ["", TOKEN])
def test_members_are_served(authorities: Authorities, token: str) -> None:
    """Again and again, over connections old and new, also with a token within."""
    with guarded(authorities.trust("server", token=token)) as manager:
        caller = authorities.trust("worker", token=token)
        with manager.client(trust=caller) as client:
            assert [client.submit(name) for name in "ab"] == ["experiment-a", "experiment-b"]
        assert called(manager.server.address, caller) == "0"
        assert called(Address("localhost", manager.server.address.port), caller) == "0"


def test_a_message_of_many_records_arrives_whole(authorities: Authorities) -> None:
    """TLS cuts it into pieces of 16 KiB; the frame puts them together."""
    long = "x" * 1_000_000
    with guarded(authorities.trust("server", token=TOKEN)) as manager:
        with manager.client(trust=authorities.trust("worker", token=TOKEN)) as client:
            assert client.submit(long) == f"experiment-{long}"
        assert manager.service.specs[f"experiment-{long}"] == long


@pytest.mark.parametrize(
    ("name", "of", "why"),
    [
        ("server", "theirs", "unknown ca"),
        ("late", "ours", "certificate expired"),
        ("early", "ours", "bad certificate"),
    ],
)
def test_a_caller_with_an_untrusted_certificate_is_rejected(
    authorities: Authorities, name: str, of: str, why: str
) -> None:
    """By its authority or its dates; a token does not help it."""
    for token in ("", TOKEN):
        with guarded(authorities.trust("server", token=token)) as manager:
            with pytest.raises(Untrusted) as refusal:
                called(manager.server.address, authorities.trust(name, of=of, token=token))
            told = f"{manager.server.address} does not accept this side's certificate: {why}"
            assert str(refusal.value) == told
            assert called(manager.server.address, authorities.trust("worker", token=token)) == "0"


@pytest.mark.parametrize(
    ("name", "of", "why"),
    [
        ("server", "theirs", "unable to get local issuer certificate"),
        ("late", "ours", "certificate has expired"),
        ("early", "ours", "certificate is not yet valid"),
        ("other", "ours", f"IP address mismatch, certificate is not valid for '{CALLS_ON}'"),
    ],
)
def test_a_server_with_an_untrusted_certificate_is_not_called(
    authorities: Authorities, name: str, of: str, why: str
) -> None:
    """The caller says so, and the service hears nothing."""
    with guarded(authorities.trust(name, of=of)) as manager:
        manager.service.before = lambda method: pytest.fail(f"{method} was carried out")
        with pytest.raises(Untrusted) as refusal:
            called(manager.server.address, authorities.trust("worker"))
    told = f"{manager.server.address} shows an untrusted certificate: {why}"
    assert str(refusal.value) == told


def test_a_caller_without_a_certificate_is_turned_away(authorities: Authorities) -> None:
    """Its side of the handshake succeeds; then it hears that one is required."""
    with guarded(authorities.trust("server")) as manager:
        context = ssl.create_default_context(cafile=authorities.ours / "ca.pem")
        with (
            manager.raw() as sock,
            pytest.raises(ssl.SSLError, match="CERTIFICATE_REQUIRED"),
            context.wrap_socket(sock, server_hostname="localhost") as stranger,
        ):
            stranger.recv(1)
        assert called(manager.server.address, authorities.trust("worker")) == "0"


def test_nothing_older_than_tls_1_3_is_spoken(authorities: Authorities) -> None:
    """Not even with a member's certificate."""
    with guarded(authorities.trust("server")) as manager:
        context = ssl.create_default_context(cafile=authorities.ours / "ca.pem")
        context.load_cert_chain(
            authorities.ours / "worker.pem", authorities.ours / "worker-key.pem"
        )
        context.maximum_version = ssl.TLSVersion.TLSv1_2
        with manager.raw() as sock, pytest.raises(ssl.SSLError, match="PROTOCOL_VERSION"):
            context.wrap_socket(sock, server_hostname="localhost")


@pytest.mark.parametrize("token", [None, TOKEN.encode()])
def test_a_plain_caller_reads_that_tls_is_required(
    authorities: Authorities, token: bytes | None
) -> None:
    """With a token or without; nothing falls back to plain."""
    with guarded(authorities.trust("server", token=TOKEN)) as manager:
        with pytest.raises(Untrusted) as refusal:
            called(manager.server.address, Trust(token=token))
        told = "requires TLS: set tls_cert, tls_key and tls_ca"
        assert str(refusal.value) == f"{manager.server.address} {told}"


@pytest.mark.parametrize("theirs", [OPEN, Trust(token=TOKEN.encode())])
def test_a_tls_caller_does_not_call_a_plain_server(authorities: Authorities, theirs: Trust) -> None:
    """Nothing falls back to plain on this side, either."""
    with guarded(theirs) as manager:
        with pytest.raises(Unreachable, match=r"ended the TLS handshake; does it speak TLS\?"):
            called(manager.server.address, authorities.trust("worker", token=TOKEN))
        assert called(manager.server.address, theirs) == "0"


def test_a_certificate_does_not_replace_the_token(authorities: Authorities) -> None:
    """Where both are asked for, both are needed."""
    with guarded(authorities.trust("server", token=TOKEN)) as manager:
        with pytest.raises(Untrusted, match="requires a token"):
            called(manager.server.address, authorities.trust("worker"))
        with pytest.raises(Untrusted, match="holds a different token"):
            called(manager.server.address, authorities.trust("worker", token="x" * 16))
    with (
        guarded(authorities.trust("server")) as manager,
        pytest.raises(Untrusted, match="has no token"),
    ):
        called(manager.server.address, authorities.trust("worker", token=TOKEN))


HANDSHAKE_BEGUN = bytes.fromhex("16030100f8010000f40303")


@pytest.mark.parametrize("said", [b"", HANDSHAKE_BEGUN[:1], HANDSHAKE_BEGUN])
def test_a_silent_handshake_delays_no_other(authorities: Authorities, said: bytes) -> None:
    """Members are served meanwhile; the silent lose their connections at the deadline."""
    trust, caller = authorities.trust("server"), authorities.trust("worker")
    with guarded(trust, Limits(handshake_seconds=0.5)) as manager:
        silent = [manager.raw() for _ in range(12)]
        for sock in silent:
            sock.sendall(said)
        assert called(manager.server.address, caller) == "0"
        for sock in silent:
            with sock:
                assert _ended(sock)


def test_a_trickled_handshake_does_not_outlive_the_deadline(authorities: Authorities) -> None:
    """Each byte comes in time, the handshake does not."""
    with guarded(authorities.trust("server"), Limits(handshake_seconds=0.5)) as manager:
        with manager.raw() as sock:
            sock.sendall(HANDSHAKE_BEGUN)
            while _say(sock, b"x"):
                Event().wait(0.02)
        assert called(manager.server.address, authorities.trust("worker")) == "0"


def test_garbage_in_the_handshake_costs_its_sender_the_connection(
    authorities: Authorities, caplog: pytest.LogCaptureFixture
) -> None:
    """Nobody else's, and no traceback."""
    caplog.set_level(logging.DEBUG)
    with guarded(authorities.trust("server")) as manager:
        for said in (b"\x16" * 4096, HANDSHAKE_BEGUN * 40, b"\x16\x03\x01\xff\xff" + bytes(70_000)):
            with manager.raw() as sock:
                _say(sock, said)
                assert _ended(sock)
        assert called(manager.server.address, authorities.trust("worker")) == "0"
    assert "Traceback" not in caplog.text


def _say(sock: socket.socket, said: bytes) -> bool:
    """Say it; false where the other side has hung up."""
    try:
        sock.sendall(said)
    except ConnectionError:
        return False
    return True


def _ended(sock: socket.socket) -> bool:
    """Read what there is; whether the other side then ended the connection."""
    sock.settimeout(PATIENCE_SECONDS)
    try:
        while sock.recv(65536):
            pass
    except ConnectionError:
        return True
    return True


def test_stopping_does_not_wait_for_a_handshake(authorities: Authorities) -> None:
    """Half of one is nothing to be finished; its peer is cut off."""
    limits = Limits(handshake_seconds=600)
    with guarded(authorities.trust("server"), limits) as manager, manager.raw() as sock:
        sock.sendall(HANDSHAKE_BEGUN)
        assert called(manager.server.address, authorities.trust("worker")) == "0"
        manager.server.stop(grace_seconds=600)
        assert _ended(sock)


@contextmanager
def mute() -> Iterator[Address]:
    """Somebody who takes connections and says nothing."""
    with socket.create_server((CALLS_ON, 0)) as listener:
        yield Address(*listener.getsockname())


@pytest.mark.parametrize("tls", [True, False])
def test_a_server_that_is_mute_in_the_handshake_is_out_of_reach(
    authorities: Authorities, *, tls: bool
) -> None:
    """After the time that a connection may take, with certificates or a token alone."""
    trust = authorities.trust("worker") if tls else Trust(token=TOKEN.encode())
    with (
        mute() as address,
        ManagerClient(address, trust=trust, connect_seconds=0.2) as client,
        pytest.raises(Unreachable, match=r"no handshake within 0\.2 s"),
    ):
        client.describe()


def test_closing_a_client_ends_its_handshake(authorities: Authorities) -> None:
    """The call in another thread ends as unreachable, long before its deadline."""
    with socket.create_server((CALLS_ON, 0)) as listener, ThreadPoolExecutor() as threads:
        trust = authorities.trust("worker")
        address = Address(*listener.getsockname())
        client = ManagerClient(address, trust=trust, connect_seconds=600, timeout_seconds=600)
        answer = threads.submit(client.describe)
        sock, _ = listener.accept()
        with sock:
            assert sock.recv(1) == b"\x16"  # the handshake has begun
            client.close()
            with pytest.raises(Unreachable):
                answer.result(PATIENCE_SECONDS)


def test_closing_a_client_at_any_moment_ends_its_call(authorities: Authorities) -> None:
    """Also between the plain connection and TLS, where one socket replaces another."""
    with guarded(authorities.trust("server")) as manager:
        trust = authorities.trust("worker")

        def call(client: ManagerClient, going: Event) -> None:
            going.set()
            try:
                while True:
                    client.describe()
            except Unreachable:
                return

        for turn in range(40):
            client, going = manager.client(trust=trust), Event()
            thread = Thread(target=call, args=(client, going), daemon=True)
            thread.start()
            going.wait(PATIENCE_SECONDS)
            Event().wait(turn / 4000)  # from before the connection to after the first call
            client.close()
            thread.join(PATIENCE_SECONDS)
            assert not thread.is_alive(), f"turn {turn}"


def test_an_interruption_while_sockets_change_hands_is_not_lost() -> None:
    """It reaches a socket that has just been replaced, and the handshake must not begin."""

    class Interrupting(ssl.SSLContext):
        def wrap_socket(self, *arguments: Any, **options: Any) -> ssl.SSLSocket:
            wrapped = super().wrap_socket(*arguments, **options)
            channel.interrupt()
            return wrapped

    with mute() as address:
        channel = Channel(socket.create_connection((address.host, address.port)))
        context = Interrupting(ssl.PROTOCOL_TLS_CLIENT)
        with pytest.raises(Closed):
            channel.secure(context, monotonic() + PATIENCE_SECONDS, server_hostname="localhost")
        channel.close()


def test_closing_a_client_ends_its_call_in_flight(authorities: Authorities) -> None:
    """A reader of TLS is woken as one of a plain socket is."""
    with guarded(authorities.trust("server")) as manager, ThreadPoolExecutor() as threads:
        gate = manager.service.before = Gate()
        client = manager.client(trust=authorities.trust("worker"), timeout_seconds=600)
        answer = threads.submit(client.describe)
        assert gate.entered.wait(PATIENCE_SECONDS)
        client.close()
        with pytest.raises(Unreachable):
            answer.result(PATIENCE_SECONDS)
        gate.release.set()


def test_an_attacker_can_read_and_alter_nothing(authorities: Authorities) -> None:
    """One flipped bit costs the connection."""
    heard: list[bytes] = []
    altering = Event()

    def alter(some: bytes) -> list[bytes]:
        heard.append(some)
        return [some if not altering.is_set() else some[:-1] + bytes([some[-1] ^ 1])]

    with (
        guarded(authorities.trust("server")) as manager,
        go_between(manager.server.address, back=alter) as address,
        ManagerClient(address, trust=authorities.trust("worker"), connect_seconds=0.5) as client,
    ):
        assert client.submit("secret") == "experiment-secret"
        assert b"secret" not in b"".join(heard)
        altering.set()
        with pytest.raises(ProtocolError):
            client.submit("second")


def test_a_trickled_answer_does_not_outlive_the_deadline(authorities: Authorities) -> None:
    """TLS waits for whole records, but no longer than the call does."""
    slowly, hung_up = Event(), Event()

    def trickle(some: bytes) -> Iterator[bytes]:
        if not slowly.is_set():
            yield some
            return
        for byte in some:
            hung_up.wait(0.05)
            yield bytes([byte])

    trust = authorities.trust("worker")
    with (
        guarded(authorities.trust("server")) as manager,
        go_between(manager.server.address, back=trickle) as address,
        ManagerClient(address, trust=trust, timeout_seconds=0.5) as client,
    ):
        client.describe()
        slowly.set()
        with pytest.raises(DeadlineExceeded):
            client.describe()
        hung_up.set()
