"""Serves a page on a socket until a signal comes."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from socket import socket

import uvicorn

from downpour.base.values import is_bare_name
from downpour.experiments.page_server.access import Door, names_here
from downpour.experiments.page_server.connections import BACKLOG, PageConnection, PageLoop
from downpour.experiments.page_server.copies import opened
from downpour.experiments.page_server.server import Dashboard
from downpour.files.logs.log_places import logs_of
from downpour.files.store.location import seen_location
from downpour.network.rpc.trust import Trust

_CLOSE_SECONDS = 5


class PageServer(uvicorn.Server):
    """A server that tells its viewers before it ends; its caller handles signals."""

    def __init__(
        self, config: uvicorn.Config, dashboard: Dashboard, ready: Callable[[PageServer], None]
    ) -> None:
        super().__init__(config)
        self._dashboard = dashboard
        self._ready = ready

    def leave(self) -> None:
        """End in order; may be called by a signal's handler and by any thread."""
        self.should_exit = True

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals alone, because uvicorn would raise them again after its end."""
        yield

    async def startup(self, sockets: list[socket] | None = None) -> None:
        """Begin to answer, and say so."""
        await super().startup(sockets)
        self._ready(self)

    async def shutdown(self, sockets: list[socket] | None = None) -> None:
        """Give viewers the last lines, then close."""
        await self._dashboard.close()
        await super().shutdown(sockets)


def serve(
    location: str,
    listener: socket,
    trust: Trust,
    host: str,
    ready: Callable[[PageServer], None],
) -> None:
    """Serve a location until someone calls `leave` on the server that `ready` gets.

    Args:
        location: a folder's path, or an object store's URL.
        listener: a listening socket.
        trust: the token and the certificates to ask for, if any.
        host: what the user called the address.
        ready: called with the server once it serves.

    Raises:
        SpecError: the folder does not exist.
        SharedDirectoryError: the bucket cannot be used.
    """
    with opened(location) as (place, refresh):
        door = Door(
            token=trust.token,
            port=listener.getsockname()[1],
            is_secure=trust.serving is not None,
            names=names_here() | ({host.lower()} if is_bare_name(host) else frozenset()),
        )
        dashboard = Dashboard(place, logs_of(seen_location(location)), door, refresh)
        context = _context(trust)
        config = uvicorn.Config(
            dashboard.app(),
            http=PageConnection,
            backlog=BACKLOG,
            log_config=None,
            log_level="critical",  # a viewer that leaves in the middle of an answer is no news
            access_log=False,
            lifespan="off",
            ws="none",
            server_header=False,
            proxy_headers=False,
            timeout_graceful_shutdown=_CLOSE_SECONDS,
            ssl_context_factory=None if context is None else lambda *_: context,
        )
        server = PageServer(config, dashboard, ready)
        with asyncio.Runner(loop_factory=PageLoop) as runner:
            runner.run(server.serve(sockets=[listener]))


def _context(trust: Trust) -> ssl.SSLContext | None:
    """Return the TLS context; if there is a token, a browser need not have a certificate."""
    if trust.serving is not None and trust.token is not None:
        trust.serving.verify_mode = ssl.CERT_NONE
    return trust.serving
