"""Connections that send half a request, or nothing: they end, and others are served meanwhile."""

from __future__ import annotations

import errno
import logging
import os
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from downpour.cluster.operations.certificates import issue
from downpour.experiments.page_server import connections
from downpour.host.paths import Credentials
from downpour.network.rpc.trust import Trust
from tests.show.dashboard.served import HERE, Page, served

RECORDED = Path(__file__).parents[2] / "recorded"
TOKEN = "the token of these tests"
HEAD = b"GET /login HTTP/1.1\r\nHost: localhost\r\n"
FORM = b"POST /login HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99\r\n\r\ntoken="


@pytest.fixture
def guarded() -> Iterator[Page]:
    """A page that asks for a token."""
    with served(RECORDED, Trust.load(Credentials(token=TOKEN))) as page:
        yield page


def stranger(page: Page, sent: bytes = b"") -> socket.socket:
    """A connection that has sent some bytes and stays open."""
    sock = socket.create_connection((HERE, page.port), timeout=20)
    sock.sendall(sent)
    return sock


def has_ended(sock: socket.socket) -> bool:
    """Whether the page has closed a connection."""
    try:
        return sock.recv(1) == b""
    except ConnectionResetError:
        return True


def is_served(page: Page) -> bool:
    """Whether somebody who knows the token gets an answer."""
    answer = page.ask("/api/experiments", {"authorization": f"Bearer {TOKEN}"})
    return answer.status == 200


@pytest.mark.parametrize("sent", [b"", b"GE", HEAD + b"X: ", FORM])
def test_half_a_request_ends_at_its_deadline(
    guarded: Page, monkeypatch: pytest.MonkeyPatch, sent: bytes
) -> None:
    """Whether its head or its body is missing."""
    monkeypatch.setattr(connections, "REQUEST_SECONDS", 0.2)
    with stranger(guarded, sent) as silent:
        assert silent.recv(1) == b""
    assert is_served(guarded)


def test_a_second_request_has_a_deadline_as_well(
    guarded: Page, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A connection that was answered once may not stay open for half a request."""
    with stranger(guarded, HEAD + b"\r\n") as silent:
        assert silent.recv(4096).startswith(b"HTTP/1.1 200")
        monkeypatch.setattr(connections, "REQUEST_SECONDS", 0.2)
        silent.sendall(HEAD)
        while silent.recv(4096):
            pass


@pytest.mark.slow
def test_half_requests_make_room_for_whole_ones(
    guarded: Page, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The oldest ones end if there are more than this process can hold; a viewer goes on."""
    monkeypatch.setattr(connections, "connections_allowed", lambda: 4)
    bearer = {"authorization": f"Bearer {TOKEN}"}
    with guarded.events("handoff", headers=bearer) as events, ExitStack() as stack:
        assert next(events)
        silent = [stack.enter_context(stranger(guarded, HEAD)) for _ in range(40)]
        assert is_served(guarded)
        assert all(has_ended(one) for one in silent[:36])
        guarded.server.leave()
        assert [name for name, _ in events][-1] == "over"


def test_half_a_handshake_ends_at_its_deadline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Under TLS, too, before there is any request."""
    monkeypatch.setattr(connections, "REQUEST_SECONDS", 0.2)
    issue([HERE], tmp_path, days=2)
    files = {"tls_cert": f"{HERE}.pem", "tls_key": f"{HERE}-key.pem", "tls_ca": "ca.pem"}
    trust = Trust.load(Credentials(**{name: str(tmp_path / file) for name, file in files.items()}))
    with served(RECORDED, trust) as page, stranger(page, b"\x16\x03\x01") as silent:
        assert silent.recv(1) == b""


def test_a_lack_of_descriptors_is_one_line(caplog: pytest.LogCaptureFixture) -> None:
    """The loop waits for one; it reports other errors as before."""
    loop = connections.PageLoop()
    error = OSError(errno.EMFILE, os.strerror(errno.EMFILE))
    loop.call_exception_handler({"message": "socket.accept()", "exception": error})
    loop.call_exception_handler({"message": "another", "exception": KeyError("x")})
    loop.close()
    first, second = caplog.records
    assert first.getMessage() == "the page cannot accept connections: Too many open files"
    assert (first.levelno, first.exc_info) == (logging.WARNING, None)
    assert second.getMessage() == "another"
