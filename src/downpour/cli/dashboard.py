"""`downpour dashboard`: serves a live page of any cluster or folder of results."""

from __future__ import annotations

import errno
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from downpour.base import options as base
from downpour.base.errors import SpecError, require
from downpour.base.options import argument, option
from downpour.base.values import PAGE_PORT
from downpour.cli.exit_status import outlive_readers
from downpour.cli.parameters import command
from downpour.cli.printing import note
from downpour.host.paths import Credentials

if TYPE_CHECKING:
    from downpour.experiments.page_server.server import PageServer
    from downpour.network.rpc.trust import Trust


_HERE = "127.0.0.1"


def listen_for_page(
    host: str, port: int, trust: Trust, field: str = "port", *, or_any: bool = False
) -> socket.socket:
    """Return a socket for a page; with `or_any`, at any free port if this one is taken."""
    from downpour.network.rpc.server import listen

    try:
        return listen(host, port, trust, field)
    except SpecError as error:
        in_use = getattr(error.__cause__, "errno", None) == errno.EADDRINUSE
        if not (or_any and in_use):
            raise
        return listen(host, 0, trust, field)


def page_url(listener: socket.socket, trust: Trust) -> str:
    """Return the URL at which a browser, here or elsewhere, finds the page."""
    host, port = listener.getsockname()[:2]
    if host in {"0.0.0.0", "::"}:  # noqa: S104 - compared, not bound
        host = socket.gethostname()
    scheme = "https" if trust.serving is not None else "http"
    return f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}/"


def page_socket(
    credentials: Credentials, port: int | None, *, wanted: bool
) -> socket.socket | None:
    """Return a socket on loopback for a page; None if no option asks for a page.

    Args:
        credentials: the token that viewers must enter.
        port: the value of `--dashboard-port`.
        wanted: the value of `--dashboard`.
    """
    if not wanted and port is None:
        return None
    require("--dashboard", "dashboard")
    from downpour.network.rpc.trust import Trust

    trust, usual = Trust.load(credentials), PAGE_PORT if port is None else port
    return listen_for_page(_HERE, usual, trust, "dashboard_port", or_any=port is None)


@contextmanager
def page_on(
    listener: socket.socket | None, shared: Path | str, credentials: Credentials
) -> Iterator[None]:
    """Serve a page of a shared directory while the block runs, if there is a socket.

    It prints the page's URL as soon as the page answers.
    """
    if listener is None:
        yield
        return
    from downpour.experiments.page_server.process import page_beside
    from downpour.network.rpc.trust import Trust

    url = page_url(listener, Trust.load(credentials))
    with page_beside(str(shared), listener, credentials, lambda: note(f"page at {url}")):
        yield


@dataclass(frozen=True, slots=True, kw_only=True)
class DashboardOptions:
    """The options of `downpour dashboard`."""

    folder: Path | str | None = argument(
        "A shared directory, or a folder of results: one experiment's, a grid's, a search's, or "
        "one that holds several.",
        "[FOLDER]",
        None,
        default="the shared directory",
        reads="location",
    )
    shared: Path | str = base.location()
    host: str = option(
        _HERE,
        "The address to listen on. If other machines can reach it, the page asks for the token.",
        "ADDRESS",
    )
    port: int = base.port(value=PAGE_PORT)


@command
def dashboard(options: DashboardOptions, credentials: Credentials) -> None:
    """Show experiments as a live page until Ctrl-C.

    The page only reads records, so you can run it on any machine that sees the folder or the
    bucket, with or without a manager.
    """
    require("downpour dashboard", "dashboard")
    from downpour.experiments.page_server.server import serve
    from downpour.host.process import allow_many_descriptors, on_interrupt, on_leaving
    from downpour.network.rpc.trust import Trust

    outlive_readers()
    allow_many_descriptors()
    trust = Trust.load(credentials)
    place = str(options.folder or options.shared)
    with listen_for_page(options.host, options.port, trust) as listener:

        def ready(server: PageServer) -> None:
            on_leaving(lambda _: server.leave())
            on_interrupt(server.leave)
            note(f"page at {page_url(listener, trust)}, of {place}")

        serve(place, listener, trust, options.host, ready)
