"""Decides who may see the page, and what a browser may do with it.

If a service has a token, a viewer types it once, in a form, and gets a cookie with a random number
and no part of the token. Programs send the token itself (`Authorization: Bearer`). Every answer
forbids scripts and requests from elsewhere. If a browser resolves another site's name to this
address (DNS rebinding), the `Host` header has the wrong name, and we refuse the request.
"""

from __future__ import annotations

import hmac
import ipaddress
import secrets
import socket
import time
from dataclasses import dataclass, field
from urllib.parse import parse_qs, urlsplit

from starlette.datastructures import MutableHeaders
from starlette.requests import HTTPConnection, Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

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
        """Whether a request comes from somebody who knows the token."""
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
