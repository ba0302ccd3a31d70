"""`downpour manager`: runs a manager in the foreground until a signal ends it."""

from __future__ import annotations

from contextlib import ExitStack
from socket import socket
from typing import Annotated

import typer

from downpour.base.values import DEFAULT_PORT
from downpour.cli.dashboard_options import DashboardFlag, DashboardPort, page_on, page_socket
from downpour.cli.options import (
    SHARED,
    DataDir,
    Location,
    OnEvent,
    Patience,
)
from downpour.cli.printing import note
from downpour.cli.process_options import (
    LogFile,
    MetricsPort,
    Port,
    PredictorFile,
    Verbose,
    begin,
    say_where,
    with_token,
)
from downpour.cli.trust_options import with_credentials
from downpour.cluster.manager.options import ManagerOptions, checked_patience
from downpour.host.credentials import Credentials
from downpour.host.event_command import checked_command
from downpour.host.extras import require


@with_credentials
def manager(
    shared: Location = SHARED,
    host: Annotated[
        str,
        typer.Option(
            metavar="ADDRESS", help="The address to listen on; 0.0.0.0 or :: for all networks."
        ),
    ] = "127.0.0.1",
    port: Port = DEFAULT_PORT,
    data_dir: DataDir = None,
    *,
    make_token: Annotated[
        bool,
        typer.Option(
            "--make-token",
            help="Create the token file if it is missing, readable by this user only: "
            "DIR/token, or the file that --token-file names.",
            rich_help_panel="Trust",
        ),
    ] = False,
    successor: Annotated[
        bool,
        typer.Option("--successor", help="Wait until the leading manager is gone, then take over."),
    ] = False,
    patience: Patience = 1.0,
    predictor: PredictorFile = "",
    metrics_port: MetricsPort = None,
    on_event: OnEvent = "",
    dashboard: DashboardFlag = False,
    dashboard_port: DashboardPort = None,
    log: LogFile = None,
    verbose: Verbose = False,
    credentials: Credentials,
) -> None:
    """Serve as the manager until Ctrl-C.

    It accepts experiments and assigns their shards to workers. It also continues experiments that
    an earlier manager of the same shared directory left unfinished. If other machines can reach it,
    it needs a token or TLS.
    """
    begin(verbose=verbose, log=log)
    if metrics_port is not None:
        require("--metrics-port", "metrics")
    if make_token:
        credentials = with_token(credentials, shared)
    options = ManagerOptions(
        shared=str(shared),
        host=host,
        port=port,
        data_dir=str(data_dir or ""),
        successor=successor,
        patience=checked_patience(patience),
        predictor=predictor,
        metrics_port=metrics_port,
        on_event=checked_command(on_event) if on_event else "",
        credentials=credentials,
    )
    _serve(options, page_socket(credentials, dashboard_port, wanted=dashboard))


def _serve(options: ManagerOptions, listener: socket | None) -> None:
    """Serve until a signal comes, along with a live page if there is a socket for one."""
    from downpour.cluster.manager.process import run_manager

    with ExitStack() as beside:

        def ready(address: object) -> None:
            note(f"manager at {address}, shared directory {options.shared}")
            # Only now, because the manager may have just created the shared directory.
            beside.enter_context(page_on(listener, options.shared, options.credentials))

        run_manager(options, ready, say_where)
