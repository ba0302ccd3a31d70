"""`downpour dashboard`: serves a live page of any cluster or folder of results."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from downpour.base.values import PAGE_PORT
from downpour.cli import streams
from downpour.cli.dashboard_options import listen_for_page, page_url
from downpour.cli.options import SHARED, Location, location, whole_number
from downpour.cli.printing import note
from downpour.cli.trust_options import with_credentials
from downpour.host.credentials import Credentials
from downpour.host.extras import require

if TYPE_CHECKING:
    from downpour.experiments.page_server.serving import PageServer


@with_credentials
def dashboard(
    folder: Annotated[
        Path | None,  # or a URL as text: Typer accepts no union
        typer.Argument(
            metavar="[FOLDER]",
            parser=location,
            help="A shared directory, or a folder of results: one experiment's, a grid's, a "
            "search's, or one that holds several.",
            show_default="the shared directory",
        ),
    ] = None,
    shared: Location = SHARED,
    host: Annotated[
        str,
        typer.Option(
            metavar="ADDRESS",
            help="The address to listen on. If other machines can reach it, the page asks for "
            "the token.",
        ),
    ] = "127.0.0.1",
    port: Annotated[
        int,
        typer.Option("--port", metavar="N", parser=whole_number, help="The port; 0: any free one."),
    ] = PAGE_PORT,
    *,
    credentials: Credentials,
) -> None:
    """Show experiments as a live page until Ctrl-C.

    The page only reads records, so you can run it on any machine that sees the folder or the
    bucket, with or without a manager.
    """
    require("downpour dashboard", "dashboard")
    from downpour.experiments.page_server.serving import serve
    from downpour.host.descriptors import allow_many
    from downpour.host.signals import on_interrupt, on_leaving
    from downpour.network.rpc.trust import Trust

    streams.outlive_readers()
    allow_many()
    trust = Trust.load(credentials)
    place = str(folder or shared)
    with listen_for_page(host, port, trust) as listener:

        def ready(server: PageServer) -> None:
            on_leaving(lambda _: server.leave())
            on_interrupt(server.leave)
            note(f"page at {page_url(listener, trust)}, of {place}")

        serve(place, listener, trust, host, ready)
