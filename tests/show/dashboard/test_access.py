"""Who may see the page, and how connections end that send too little."""

import asyncio
import errno
import logging
import os
import socket
import ssl
from collections.abc import AsyncGenerator, Iterator
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import urlencode

import pytest

from downpour.base.errors import SpecError
from downpour.cli.serving import listen_for_page
from downpour.cluster.certificates import issue
from downpour.experiments.page_server import viewers
from downpour.experiments.page_server.viewers import POLICY, Chunk, EventStream
from downpour.host.paths import Credentials
from downpour.network.rpc.trust import OPEN, Trust
from tests.show.dashboard.served import HERE, Page, served

RECORDED = Path(__file__).parents[2] / "recorded"

TOKEN = "the token of these tests"

FRAME = "/api/experiments/handoff/frame"


@pytest.fixture
def guarded() -> Iterator[Page]:
    """A page that asks for a token."""
    with served(RECORDED, Trust.load(Credentials(token=TOKEN))) as page:
        yield page


def logged_in(page: Page, token: str = TOKEN) -> str:
    """The cookie that a browser gets for a token; empty if it gets none."""
    answer = page.ask("/login", form=urlencode({"token": token}))
    return (answer.headers["set-cookie"] or "").partition(";")[0]


def test_a_stranger_gets_the_form_and_nothing_else(guarded: Page) -> None:
    """Neither experiments nor their names, whatever the path; files of the page are no secret."""
    for path in ("/api/experiments", FRAME, "/api/experiments/handoff/events", "/api/studies/x"):
        assert guarded.ask(path).status == 401
    assert guarded.ask("/").headers["location"] == "/login"
    form = guarded.ask("/login")
    assert (form.status, b'type="password"' in form.body) == (200, True)
    assert guarded.ask("/theme.css").status == guarded.ask("/assets/page.css").status == 200
    assert guarded.ask("/assets/../api/experiments").status == 404


@pytest.mark.parametrize("wrong", ["", "a wrong token", TOKEN + "x", "ü" * 99, "x" * 5000, "\x00"])
def test_a_wrong_token_opens_nothing(guarded: Page, wrong: str) -> None:
    """Neither in the form nor in a header."""
    answer = guarded.ask("/login", form=urlencode({"token": wrong}))
    assert (answer.status, answer.headers["set-cookie"]) == (403, None)
    headers = {"authorization": f"Bearer {wrong}".encode("latin-1", "replace").decode("latin-1")}
    if wrong != "\x00":
        assert guarded.ask(FRAME, headers).status == 401
    assert guarded.ask("/login", form="token=" + "x" * 100_000).status == 403


def test_the_token_gives_a_cookie_that_is_not_the_token(guarded: Page) -> None:
    """No script and no other site can use it, and it ends with the session."""
    answer = guarded.ask("/login", form=urlencode({"token": f" {TOKEN}\n"}))
    assert (answer.status, answer.headers["location"]) == (303, "/")
    cookie, *flags = (answer.headers["set-cookie"] or "").split("; ")
    assert {"HttpOnly", "SameSite=strict", "Path=/"} <= set(flags)
    assert TOKEN not in cookie
    assert f"downpour-{guarded.port}=" in cookie
    assert guarded.ask(FRAME, {"cookie": cookie}).status == 200
    listed = guarded.ask("/api/experiments", {"cookie": cookie}).json
    assert listed["login"], "so the page offers to log out"
    assert guarded.ask(FRAME, {"cookie": f"downpour-{guarded.port}=x"}).status == 401
    guarded.ask("/logout", {"cookie": cookie}, form="")
    assert guarded.ask(FRAME, {"cookie": cookie}).status == 401


def test_a_program_sends_the_token_itself(guarded: Page) -> None:
    """As a bearer, which a stream takes as well."""
    headers = {"authorization": f"Bearer {TOKEN}"}
    assert guarded.ask(FRAME, headers).json["seq"] == 45
    with guarded.events("handoff", headers=headers) as events:
        assert next(events)[0] == "frame"


def test_a_site_that_poses_as_this_address_is_refused() -> None:
    """A browser that resolves its name to this machine still sends its name (DNS rebinding)."""
    with served(RECORDED) as page:
        for host in (
            "evil.example",
            f"evil.example:{page.port}",
            "",
            "127.0.0.1.evil.example",
            "[",
        ):
            assert page.ask("/", {"host": host}).status == 421, host
        for host in (f"localhost:{page.port}", "127.0.0.1", f"[::1]:{page.port}", "10.0.0.7"):
            assert page.ask("/", {"host": host}).status == 200, host


def test_another_site_cannot_ask_in_a_users_name(guarded: Page) -> None:
    """Not even with the user's cookie."""
    cookie = logged_in(guarded)
    theirs = {"cookie": cookie, "origin": "https://evil.example"}
    ours = {"cookie": cookie, "origin": f"http://{HERE}:{guarded.port}"}
    assert guarded.ask(FRAME, theirs).status == 403
    assert guarded.ask(FRAME, ours).status == 200


def test_every_answer_forbids_what_the_page_does_not_need(guarded: Page) -> None:
    """Scripts, styles and connections from elsewhere, frames, guesses at types, and copies."""
    cookie = {"cookie": logged_in(guarded)}
    for path in ("/", FRAME, "/login", "/nothing", "/theme.css", "/assets/page.css"):
        headers = guarded.ask(path, cookie).headers
        assert headers["content-security-policy"] == POLICY
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["referrer-policy"] == "no-referrer"
        assert headers["server"] is None
        assert (headers["cache-control"] == "no-store") == (not path.endswith(("/", "page.css")))
    assert "unsafe" not in POLICY


def test_other_machines_reach_it_only_with_credentials() -> None:
    """On loopback nothing is asked."""
    listen_for_page(HERE, 0, OPEN).close()
    with pytest.raises(SpecError, match="a token"):
        listen_for_page("0.0.0.0", 0, OPEN)


def test_over_tls_the_cookie_is_secure_and_a_token_is_enough(tmp_path: Path) -> None:
    """A browser has no certificate of the cluster's; without a token it needs one."""
    issue([HERE], tmp_path, days=2)
    files = {name: str(tmp_path / f"{HERE}{rest}.pem") for name, rest in _TLS.items()}
    credentials = Credentials(**files, tls_ca=str(tmp_path / "ca.pem"), token=TOKEN)
    browser = ssl.create_default_context(cafile=str(tmp_path / "ca.pem"))
    with served(RECORDED, Trust.load(credentials), browser) as page:
        assert page.ask(FRAME).status == 401
        answer = page.ask("/login", form=urlencode({"token": TOKEN}))
        cookie, *flags = (answer.headers["set-cookie"] or "").split("; ")
        assert cookie.startswith("__Host-")
        assert "Secure" in flags
        assert page.ask(FRAME, {"cookie": cookie}).status == 200
    without = Trust.load(Credentials(**files, tls_ca=str(tmp_path / "ca.pem")))
    with served(RECORDED, without, browser) as page, pytest.raises((ssl.SSLError, OSError)):
        page.ask(FRAME)
    with served(RECORDED, without, without.calling) as page:
        assert page.ask(FRAME).status == 200


_TLS = {"tls_cert": "", "tls_key": "-key"}


def test_a_viewer_that_takes_nothing_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a while, with one chunk in memory; what made the chunks is closed."""
    monkeypatch.setattr(viewers, "SEND_SECONDS", 0.01)
    made: list[int] = []
    closed: list[bool] = []

    async def chunks() -> AsyncGenerator[Chunk]:
        try:
            for number in range(1000):
                made.append(number)
                yield Chunk(b"x" * 100)
        finally:
            closed.append(True)

    async def send(message: object) -> None:
        if "body" in str(message):
            await asyncio.Event().wait()

    async def receive() -> dict[str, str]:
        await asyncio.Event().wait()
        return {}

    asyncio.run(EventStream(chunks(), is_zipped=True)({}, receive, send))
    assert made == [0]
    assert closed == [True]


HEAD = b"GET /login HTTP/1.1\r\nHost: localhost\r\n"

FORM = b"POST /login HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99\r\n\r\ntoken="


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
    monkeypatch.setattr(viewers, "REQUEST_SECONDS", 0.2)
    with stranger(guarded, sent) as silent:
        assert silent.recv(1) == b""
    assert is_served(guarded)


def test_a_second_request_has_a_deadline_as_well(
    guarded: Page, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A connection that was answered once may not stay open for half a request."""
    with stranger(guarded, HEAD + b"\r\n") as silent:
        assert silent.recv(4096).startswith(b"HTTP/1.1 200")
        monkeypatch.setattr(viewers, "REQUEST_SECONDS", 0.2)
        silent.sendall(HEAD)
        while silent.recv(4096):
            pass


@pytest.mark.slow
def test_half_requests_make_room_for_whole_ones(
    guarded: Page, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The oldest ones end if there are more than this process can hold; a viewer goes on."""
    monkeypatch.setattr(viewers, "connections_allowed", lambda: 4)
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
    monkeypatch.setattr(viewers, "REQUEST_SECONDS", 0.2)
    issue([HERE], tmp_path, days=2)
    files = {"tls_cert": f"{HERE}.pem", "tls_key": f"{HERE}-key.pem", "tls_ca": "ca.pem"}
    trust = Trust.load(Credentials(**{name: str(tmp_path / file) for name, file in files.items()}))
    with served(RECORDED, trust) as page, stranger(page, b"\x16\x03\x01") as silent:
        assert silent.recv(1) == b""


def test_a_lack_of_descriptors_is_one_line(caplog: pytest.LogCaptureFixture) -> None:
    """The loop waits for one; it reports other errors as before."""
    loop = viewers.PageLoop()
    error = OSError(errno.EMFILE, os.strerror(errno.EMFILE))
    loop.call_exception_handler({"message": "socket.accept()", "exception": error})
    loop.call_exception_handler({"message": "another", "exception": KeyError("x")})
    loop.close()
    first, second = caplog.records
    assert first.getMessage() == "the page cannot accept connections: Too many open files"
    assert (first.levelno, first.exc_info) == (logging.WARNING, None)
    assert second.getMessage() == "another"
