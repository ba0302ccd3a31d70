"""The viewers of the page: their connections, what each may see and do, and their events.

uvicorn waits for the rest of a request without end, so strangers could hold all connections. Ours
closes unless its request arrives in time, and makes room for others.

If a service has a token, a viewer types it once, in a form, and gets a cookie with a random number
and no part of the token. Programs send the token itself (`Authorization: Bearer`). Every answer
forbids scripts and requests from elsewhere. If a browser resolves another site's name to this
address (DNS rebinding), the `Host` header has the wrong name, and we refuse the request.

Server-sent events are compressed once for all viewers. If a viewer does not take a chunk in time,
we end its connection. The browser then reconnects, and says which line it knows.
"""

import asyncio
import hmac
import ipaddress
import logging
import math
import re
import secrets
import socket
import struct
import time
import zlib
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing, suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any
from urllib.parse import parse_qs, urlsplit

import h11
from starlette.datastructures import MutableHeaders
from starlette.requests import HTTPConnection, Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from downpour.base.errors import SpecError
from downpour.files.log_places import LEVELS, level_of
from downpour.host.process import connections_allowed, lacks_descriptors
from downpour.record.stored_experiments import LogFilter, span_until, submission_seconds

log = logging.getLogger(__name__)

REQUEST_SECONDS = 10.0
"""How long a TLS handshake, or a whole request, may take to arrive."""
BACKLOG = 64
"""How many connections the loop accepts at once, before it closes any."""
_ARRIVING = (h11.IDLE, h11.SEND_BODY)


class PageConnection(H11Protocol):
    """Closes itself unless a request arrives; if there are too many, the oldest one closes."""

    waiting_since: float | None = None
    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Wait for the first request, and make room for it."""
        super().connection_made(transport)
        self._await_request()
        if len(self.connections) > connections_allowed():
            pages = (one for one in self.connections if isinstance(one, PageConnection))
            min(pages, key=lambda one: one.waiting_since or math.inf).transport.abort()

    def data_received(self, data: bytes) -> None:
        """Take in bytes; the time for a request begins with its first one."""
        super().data_received(data)
        if self.conn.their_state not in _ARRIVING:
            self._stop_waiting()
        elif self.waiting_since is None:
            self._await_request()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the deadline."""
        self._stop_waiting()
        super().connection_lost(exc)

    def _await_request(self) -> None:
        self.waiting_since = self.loop.time()
        self._deadline = self.loop.call_later(REQUEST_SECONDS, self.transport.abort)

    def _stop_waiting(self) -> None:
        self.waiting_since = None
        if self._deadline is not None:
            self._deadline.cancel()


class PageLoop(asyncio.SelectorEventLoop):
    """An event loop that gives up a slow TLS handshake, and waits if descriptors run out."""

    async def create_server(self, *args: Any, **options: Any) -> asyncio.Server:
        """Make a server."""
        if options.get("ssl") is not None:
            options["ssl_handshake_timeout"] = REQUEST_SECONDS
        return await super().create_server(*args, **options)

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Tell a lack of descriptors in one line; the loop itself tries again after a second."""
        error = context.get("exception")
        if isinstance(error, OSError) and lacks_descriptors(error):
            log.warning("the page cannot accept connections: %s", error.strerror)
        else:
            super().call_exception_handler(context)


POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
)
_HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
}
_OPEN = ("/login", "/theme.css", "/assets/")
"""Paths that strangers may read: the form, and files that are the same on every server."""
SESSION_SECONDS = 12 * 3600
_SESSIONS_MAX = 1000
_TOKEN_CHARACTERS_MAX = 4096

LOGIN_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Downpour</title>
<link rel="stylesheet" href="/theme.css">
<link rel="stylesheet" href="/assets/page.css">
</head>
<body class="login">
<main>
<h1>Downpour</h1>
<form method="post" action="/login">
<label for="token">The cluster's token</label>
<input id="token" name="token" type="password" autocomplete="off" required autofocus>
<button>Log in</button>
</form>
<p>%s</p>
</main>
</body>
</html>
"""


@dataclass(slots=True)
class Door:
    """Lets viewers in.

    Args:
        token: the token that viewers must know; None: everybody may see the page.
        port: the service's port, because browsers send cookies to every port of a host.
        is_secure: whether the service speaks TLS.
        names: names of this machine that `Host` may have besides addresses and localhost.
    """

    token: bytes | None = None
    port: int = 0
    is_secure: bool = False
    names: frozenset[str] = frozenset()
    _sessions: dict[str, float] = field(default_factory=dict)

    @property
    def cookie(self) -> str:
        """The cookie's name."""
        return f"{'__Host-' if self.is_secure else ''}downpour-{self.port}"

    def is_known(self, connection: HTTPConnection) -> bool:
        """Whether the sender of a request knows the token."""
        if self.token is None:
            return True
        scheme, _, given = connection.headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer":
            return self.is_token(given.strip())
        until = self._sessions.get(connection.cookies.get(self.cookie, ""), 0.0)
        return time.monotonic() < until

    def is_token(self, given: str) -> bool:
        """Whether a text is the token; every wrong text takes equally long."""
        if self.token is None or len(given) > _TOKEN_CHARACTERS_MAX:
            return False
        return hmac.compare_digest(given.encode(errors="surrogateescape"), self.token)

    def is_called_rightly(self, connection: HTTPConnection) -> bool:
        """Whether `Host` is an address, localhost or a name of this machine."""
        host = _host_of(f"//{connection.headers.get('host', '')}")
        if host in {"localhost", *self.names}:
            return True
        try:
            ipaddress.ip_address(host)
        except ValueError:
            return False
        return True

    async def log_in(self, request: Request) -> Response:
        """Answer the form: show it, or take the token in exchange for a cookie."""
        if request.method != "POST":
            return _form("")
        if not self.is_token(await _token_in(request)):
            return _form("That is not the token.", status=403)
        response = RedirectResponse("/", status_code=303)
        response.set_cookie(
            self.cookie,
            self._new_session(),
            max_age=SESSION_SECONDS,
            httponly=True,
            samesite="strict",
            secure=self.is_secure,
        )
        return response

    async def log_out(self, request: Request) -> Response:
        """Forget the session."""
        self._sessions.pop(request.cookies.get(self.cookie, ""), None)
        response = RedirectResponse("/login", status_code=303)
        response.delete_cookie(self.cookie, secure=self.is_secure, httponly=True)
        return response

    def _new_session(self) -> str:
        now = time.monotonic()
        alive = {name: until for name, until in self._sessions.items() if until > now}
        # No matter how often someone logs in, this ends only the oldest sessions.
        self._sessions = dict(list(alive.items())[-_SESSIONS_MAX + 1 :])
        session = secrets.token_urlsafe(32)
        self._sessions[session] = now + SESSION_SECONDS
        return session


class Guard:
    """Stands before all routes: checks each viewer, and adds the headers to each answer."""

    def __init__(self, app: ASGIApp, door: Door) -> None:
        self._app = app
        self._door = door

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers.update(_HEADERS)
                kept = scope["path"].startswith("/assets/")
                headers.setdefault("cache-control", "no-cache" if kept else "no-store")
            await send(message)

        refused = self._refusal(HTTPConnection(scope))
        await (refused or self._app)(scope, receive, send_guarded)

    def _refusal(self, connection: HTTPConnection) -> Response | None:
        if not self._door.is_called_rightly(connection):
            names = "use its address, localhost or its host's name"
            said = f"This server does not answer to that name; {names}.\n"
            return PlainTextResponse(said, status_code=421)
        origin = connection.headers.get("origin")
        if origin not in {None, "null"} and _host_of(str(origin)) != _host_of(
            f"//{connection.headers.get('host', '')}"
        ):
            return PlainTextResponse("Another site's page sent this request.\n", status_code=403)
        path = connection.scope["path"]
        if path.startswith(_OPEN) or self._door.is_known(connection):
            return None
        if path == "/":
            return RedirectResponse("/login", status_code=303)
        return PlainTextResponse("Log in, or send the token.\n", status_code=401)


def names_here() -> frozenset[str]:
    """Return the names by which this machine knows itself."""
    return frozenset(name.lower() for name in (socket.gethostname(), socket.getfqdn()))


async def _token_in(request: Request) -> str:
    """Return the value of a form's field; empty if it is larger than any token."""
    body = b""
    async for piece in request.stream():
        body += piece
        if len(body) > 4 * _TOKEN_CHARACTERS_MAX:
            return ""
    fields = parse_qs(body.decode(errors="replace"), max_num_fields=4)
    return fields.get("token", [""])[0].strip()


def _form(said: str, status: int = 200) -> Response:
    return Response(LOGIN_PAGE % said, status_code=status, media_type="text/html")


def _host_of(url: str) -> str:
    try:
        return (urlsplit(url).hostname or "").rstrip(".")
    except ValueError:
        return ""


SEND_SECONDS = 30.0
"""A viewer that takes nothing for this long is gone."""
_HEAD = b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\xff"
_LEVEL = 6


@dataclass(frozen=True)
class Chunk:
    """A piece of a stream."""

    plain: bytes

    @cached_property
    def deflated(self) -> bytes:
        """The piece as deflate blocks that refer to nothing before them."""
        compressor = zlib.compressobj(_LEVEL, zlib.DEFLATED, -zlib.MAX_WBITS)
        return compressor.compress(self.plain) + compressor.flush(zlib.Z_SYNC_FLUSH)


PING = Chunk(b": ping\n\n")


def event(name: str, data: str, number: int | None = None) -> Chunk:
    """Return an event; `data` has no line breaks, and a browser sends back `number`."""
    known = f"id: {number}\n" if number is not None else ""
    return Chunk(f"{known}event: {name}\ndata: {data}\n\n".encode())


class Gzip:
    """Puts chunks into one gzip stream."""

    def __init__(self) -> None:
        self._checksum = 0
        self._size = 0
        self._head = _HEAD

    def add(self, chunk: Chunk) -> bytes:
        """Return the bytes of the next chunk."""
        self._checksum = zlib.crc32(chunk.plain, self._checksum)
        self._size += len(chunk.plain)
        head, self._head = self._head, b""
        return head + chunk.deflated

    def end(self) -> bytes:
        """Return the bytes with which the stream ends."""
        return b"\x03\x00" + struct.pack("<II", self._checksum, self._size & 0xFFFFFFFF)


class EventStream:
    """A response of chunks, until they end, or the viewer leaves or is too slow."""

    def __init__(self, chunks: AsyncGenerator[Chunk], *, is_zipped: bool) -> None:
        self._chunks = chunks
        self._gzip = Gzip() if is_zipped else None

    async def __call__(self, _: Scope, receive: Receive, send: Send) -> None:
        """Send the chunks."""
        sending = asyncio.create_task(self._send_all(send))
        leaving = asyncio.create_task(_left(receive))
        try:
            await asyncio.wait({sending, leaving}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (sending, leaving):
                task.cancel()
                with suppress(asyncio.CancelledError, TimeoutError, OSError):
                    await task

    async def _send_all(self, send: Send) -> None:
        headers = [(b"content-type", b"text/event-stream"), (b"cache-control", b"no-store")]
        if self._gzip:
            headers.append((b"content-encoding", b"gzip"))
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        async with aclosing(self._chunks) as chunks:
            async for chunk in chunks:
                body = self._gzip.add(chunk) if self._gzip else chunk.plain
                sent = send({"type": "http.response.body", "body": body, "more_body": True})
                await asyncio.wait_for(sent, SEND_SECONDS)
        end = self._gzip.end() if self._gzip else b""
        await send({"type": "http.response.body", "body": end, "more_body": False})


async def _left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


_CURSOR = re.compile(r"[0-9a-f]{8}\.[0-9]{1,12}", re.ASCII)
_SECONDS = re.compile(r"-?[0-9]{1,12}(\.[0-9]{1,6})?", re.ASCII)
_AROUND_SECONDS = 2.0
"""Margin: we know a submission to the second, and each host has its own clock."""


def log_query(
    asked: Mapping[str, str], about: Mapping[str, Any], exported: float
) -> tuple[str, LogFilter, LogFilter]:
    """Return the arguments of `LogFeed.page` that a URL asks for.

    Args:
        asked: the URL's parameters: `after`, `worker`, `level`, and `from` and `to` in seconds
            since the submission. All may be absent.
        about: the experiment, as its page knows it.
        exported: when the manager wrote its record, in seconds since 1970; 0 if it has not.
    """
    after = asked.get("after", "")
    if after and not _CURSOR.fullmatch(after):
        raise SpecError("after", after, "must be the value of next in the last answer")
    experiment, ended = str(about.get("id", "")), about.get("ended_at")
    begin, end = span_until(experiment, math.inf if ended is None else ended)
    span = LogFilter(begin=begin, end=max(end, exported))
    start = submission_seconds(experiment) or float(about.get("start", 0.0))
    wanted = replace(
        span,
        begin=max(begin, start + _seconds(asked, "from", -math.inf) - _AROUND_SECONDS),
        end=min(span.end, start + _seconds(asked, "to", math.inf) + _AROUND_SECONDS),
        level=level_of(asked.get("level", LEVELS[0])),
        of=asked.get("worker", ""),
    )
    return after, span, wanted


def _seconds(asked: Mapping[str, str], name: str, otherwise: float) -> float:
    given = asked.get(name, "")
    if not given:
        return otherwise
    if not _SECONDS.fullmatch(given):
        raise SpecError(name, given, "must be seconds since the submission, such as 12.5")
    return float(given)
