"""A browser's connection: its request must arrive in time, or it makes room for others.

uvicorn waits for the rest of a request without end, so strangers could hold all connections.
"""

from __future__ import annotations

import asyncio
import logging
import math
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from downpour.host.process import connections_allowed, lacks_descriptors

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
