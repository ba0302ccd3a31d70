"""`downpour manager` and `downpour worker`: the processes of a cluster, each in the foreground."""

from __future__ import annotations

import logging
import signal
import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from downpour.cli.options import (
    MANAGER,
    SHARED,
    ConnectSeconds,
    DataDir,
    Manager,
    Patience,
    Shared,
    whole_number,
)
from downpour.cli.printing import note
from downpour.cli.trust_options import with_credentials
from downpour.credentials import Credentials
from downpour.discovery.waiting import CONNECT_SECONDS, checked_seconds
from downpour.errors import SpecError
from downpour.extras import require
from downpour.manager.options import ManagerOptions, checked_patience
from downpour.text import log_to_stderr
from downpour.values import DEFAULT_PORT
from downpour.worker.options import WorkerOptions

DEVICES = ("cpu", "cuda")
_TERMINATED = 128 + signal.SIGTERM

Port = Annotated[
    int,
    typer.Option("--port", metavar="N", parser=whole_number, help="The port; 0: any free one."),
]
PredictorFile = Annotated[
    str,
    typer.Option(
        metavar="FILE",
        help="The predictor of completion times, as `downpour predictor train` writes it.",
        show_default="the one that is shipped",
    ),
]
MetricsPort = Annotated[
    int | None,
    typer.Option(
        "--metrics-port",
        metavar="N",
        parser=whole_number,
        help="Serve metrics for Prometheus at this port; 0: any free one.",
        show_default="not served",
    ),
]
Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="Log more.")]


@with_credentials
def manager(
    shared: Shared = SHARED,
    host: Annotated[
        str,
        typer.Option(metavar="ADDRESS", help="Where to listen; 0.0.0.0 or :: for all networks."),
    ] = "127.0.0.1",
    port: Port = DEFAULT_PORT,
    data_dir: DataDir = None,
    *,
    make_token: Annotated[
        bool,
        typer.Option(
            "--make-token",
            help="Make the token file if it is missing, readable by this user only: DIR/token, or "
            "the file that --token-file names.",
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
    verbose: Verbose = False,
    credentials: Credentials,
) -> None:
    """Serve as the manager until Ctrl-C.

    It accepts experiments and assigns their shards to workers. Experiments that an earlier manager
    of the same shared directory has not finished go on. If other machines can reach it, a token or
    TLS is required.
    """
    _begin(verbose=verbose)
    if metrics_port is not None:
        require("--metrics-port", "metrics")
    if make_token:
        credentials = _with_token(credentials, shared)
    from downpour.manager.process import run_manager

    options = ManagerOptions(
        shared=str(shared),
        host=host,
        port=port,
        data_dir=str(data_dir or ""),
        successor=successor,
        patience=checked_patience(patience),
        predictor=predictor,
        metrics_port=metrics_port,
        credentials=credentials,
    )
    run_manager(
        options,
        lambda address: note(f"manager at {address}, shared directory {shared}"),
        _say_where,
    )


@with_credentials
def worker(
    manager: Manager = MANAGER,
    shared: Shared = SHARED,
    name: Annotated[
        str, typer.Option(metavar="NAME", help="The worker's name.", show_default="the host's name")
    ] = "",
    host: Annotated[
        str,
        typer.Option(
            metavar="ADDRESS",
            help="Where to listen.",
            show_default="loopback if the manager is on it, else all networks",
        ),
    ] = "",
    port: Port = 0,
    advertise: Annotated[
        str,
        typer.Option(
            metavar="HOST[:PORT]",
            help="Where the manager calls this worker back.",
            show_default="the address that reaches the manager",
        ),
    ] = "",
    device: Annotated[
        str, typer.Option(metavar="|".join(DEVICES), help="Where this worker trains.")
    ] = "cpu",
    metrics_port: MetricsPort = None,
    *,
    connect_seconds: ConnectSeconds = CONNECT_SECONDS,
    verbose: Verbose = False,
    credentials: Credentials,
) -> None:
    """Serve as a worker until Ctrl-C.

    It trains the shards that the manager assigns. It may be started before the manager, and finds
    the leader through the shared directory.
    """
    if device not in DEVICES:
        raise SpecError("device", device, f"must be {' or '.join(DEVICES)}")
    _begin(verbose=verbose)
    if metrics_port is not None:
        require("--metrics-port", "metrics")
    options = WorkerOptions(
        manager=manager,
        shared=str(shared),
        name=name,
        host=host,
        port=port,
        advertise=advertise,
        device=device,
        metrics_port=metrics_port,
        connect_seconds=checked_seconds(connect_seconds),
        credentials=credentials,
    )
    from downpour.worker.process import run_worker

    run_worker(options, lambda address: note(f"worker at {address}, manager {manager}"), _say_where)


def _begin(*, verbose: bool) -> None:
    """Set up the log, and end on SIGTERM.

    The kernel drops SIGTERM for the first process of a container unless that handles it.
    """
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(_TERMINATED))
    level = logging.INFO if verbose else logging.WARNING
    log_to_stderr(level, "%(asctime)s %(levelname)s %(name)s: %(message)s")
    logging.getLogger("downpour.membership").setLevel(logging.INFO)


def _say_where(url: str) -> None:
    note(f"metrics at {url}")


def _with_token(credentials: Credentials, shared: Path) -> Credentials:
    from downpour.operations.token import make_token

    path = Path(credentials.token_file or shared / "token")
    if make_token(path):
        note(f"made a token: {path}")
    return replace(credentials, token_file=str(path))
