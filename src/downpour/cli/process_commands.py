"""`downpour manager` and `downpour worker`: run a process in the foreground."""

from __future__ import annotations

import logging
import os
import sys
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from socket import socket
from typing import TYPE_CHECKING, Annotated

import typer

from downpour.base.devices import AUTO, NAMES, check_device
from downpour.base.errors import ComeAgain, DownpourError, SpecError
from downpour.base.values import DEFAULT_PORT, checked_labels
from downpour.cli.dashboard import DashboardFlag, DashboardPort, page_on, page_socket
from downpour.cli.exit_status import SIGNALLED, outlive_readers
from downpour.cli.options import (
    SHARED,
    ConnectSeconds,
    DataDir,
    Location,
    Manager,
    OnEvent,
    Patience,
    number,
    path_option,
    whole_number,
    with_credentials,
)
from downpour.cli.printing import note
from downpour.cluster.manager.options import ManagerOptions, checked_patience
from downpour.cluster.worker.options import WorkerOptions
from downpour.host.event_command import checked_command
from downpour.host.extras import require
from downpour.host.paths import TOKEN_NAME, Credentials, is_object_store
from downpour.host.process import on_leaving, waiting_for_leave
from downpour.host.text import set_up_log
from downpour.network.discovery.waiting import CONNECT_SECONDS, checked_seconds, manager_may_come

if TYPE_CHECKING:
    from downpour.network.rpc import Address


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
WorkerName = Annotated[
    str, typer.Option(metavar="NAME", help="The worker's name.", show_default="the host's name")
]
WorkerHost = Annotated[
    str,
    typer.Option(
        metavar="ADDRESS",
        help="The address to listen on.",
        show_default="loopback if the manager is on it, else all networks",
    ),
]
Advertise = Annotated[
    str,
    typer.Option(
        metavar="HOST[:PORT]",
        help="The address at which the manager calls this worker back.",
        show_default="the address that reaches the manager",
    ),
]
Device = Annotated[
    str,
    typer.Option(
        metavar=NAMES, help="The device to train on; auto: the best that this machine has."
    ),
]
Place = Annotated[
    int,
    typer.Option(
        metavar="N",
        parser=whole_number,
        help="The worker's number among those of its machine, from 0: they take the "
        "accelerators in turn.",
    ),
]
DrainSeconds = Annotated[
    float,
    typer.Option(
        metavar="X",
        parser=number,
        help="How long the worker may take to finish its task when a signal tells it to "
        "leave. It saves and hands back an unfinished one.",
    ),
]
AloneSeconds = Annotated[
    float,
    typer.Option(
        metavar="X",
        parser=number,
        help="Leave after this long without a manager's answer; 0: wait forever.",
    ),
]
ReadyFile = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        parser=path_option("ready_file"),
        help="Keep this file, with the worker's address, as long as the worker is registered.",
        show_default="none",
    ),
]
Labels = Annotated[
    list[str] | None,
    typer.Option(
        "--label",
        metavar="KEY=VALUE",
        help="A label that specs and shards can require; `downpour status` and `downpour ps` "
        "show it. Repeatable.",
        show_default=False,
    ),
]
Processes = Annotated[
    int | None,
    typer.Option(
        "--processes",
        metavar="N",
        parser=whole_number,
        help="Train each batch with at most N processes; the resulting bytes don't depend on N.",
        show_default="as many as the spec asks for",
    ),
]
AcceptCode = Annotated[
    bool,
    typer.Option(
        "--accept-code",
        envvar="DOWNPOUR_ACCEPT_CODE",
        help="If this machine lacks a file of an experiment's code or has another version, "
        "use the manager's. DOWNPOUR_ALLOW still decides whose code may run.",
    ),
]
Count = Annotated[
    int,
    typer.Option(
        "--count",
        metavar="N",
        parser=whole_number,
        help="How many workers to run, each in its own process: NAME-1, NAME-2 and so on, "
        "with ports that count up.",
    ),
]
LogFile = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        parser=path_option("log"),
        help="Append the log to this file.",
        show_default="standard error",
    ),
]
Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="Log more.")]


def begin(*, verbose: bool, log: Path | None) -> None:
    """Set up the log, and let signals end the process until it needs an orderly end.

    In a container, the kernel drops SIGTERM for the first process unless that process handles it.
    """
    outlive_readers()
    on_leaving(lambda number: sys.exit(SIGNALLED + number))
    level = logging.INFO if verbose else logging.WARNING
    try:
        set_up_log(level, "%(asctime)s %(levelname)s %(name)s: %(message)s", log)
    except OSError as error:
        raise SpecError("log", str(log), f"cannot be written: {error.strerror}") from None
    logging.getLogger("downpour.membership").setLevel(logging.INFO)


def say_where(url: str) -> None:
    """Print the URL of the metrics."""
    note(f"metrics at {url}")


def with_token(credentials: Credentials, shared: Path | str) -> Credentials:
    """Return credentials with a token, and create the token if it is missing."""
    from downpour.files.store.presence import make_token

    if not credentials.token_file and is_object_store(shared):
        accepted = "needs --token-file, because a token does not belong in an object store"
        raise SpecError("make_token", value=True, accepted=accepted)
    path = Path(credentials.token_file or Path(shared) / TOKEN_NAME)
    if make_token(path):
        note(f"made a token: {path}")
    return replace(credentials, token_file=str(path))


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


_COUNT_MAX = 1000
_PROCESSES_MAX = 256


@with_credentials
def worker(
    manager: Manager = "",
    shared: Location = SHARED,
    name: WorkerName = "",
    host: WorkerHost = "",
    port: Port = 0,
    advertise: Advertise = "",
    device: Device = AUTO,
    metrics_port: MetricsPort = None,
    *,
    connect_seconds: ConnectSeconds = CONNECT_SECONDS,
    drain_seconds: DrainSeconds = 0.0,
    alone_seconds: AloneSeconds = 0.0,
    ready_file: ReadyFile = None,
    label: Labels = None,
    processes: Processes = None,
    accept_code: AcceptCode = False,
    count: Count = 1,
    place: Place = 0,
    log: LogFile = None,
    verbose: Verbose = False,
    credentials: Credentials,
) -> None:
    """Serve as a worker until Ctrl-C.

    It trains the shards that the manager assigns. You can start it before the manager; it finds the
    leader through the shared directory.

    SIGTERM, SIGUSR1, SIGUSR2 and Ctrl-C tell it to leave; a second Ctrl-C ends it at once.
    The exit status is 75 if the worker found no manager: the same command may succeed later. It is
    2 for mistakes that you can correct.
    """
    check_device(device)
    _check(ready_file, processes, place)
    begin(verbose=verbose, log=log)
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
        place=place,
        metrics_port=metrics_port,
        connect_seconds=checked_seconds("connect_seconds", connect_seconds),
        drain_seconds=checked_seconds("drain_seconds", drain_seconds),
        alone_seconds=checked_seconds("alone_seconds", alone_seconds),
        ready_file=str(ready_file or ""),
        labels=checked_labels(label or ()),
        processes=processes,
        accepts_code=accept_code,
        credentials=credentials,
    )
    if count == 1:
        _run_one(options)
    else:
        _run_several(options, count, log)


def _check(ready_file: Path | None, processes: int | None, place: int) -> None:
    if not 0 <= place <= _COUNT_MAX:
        raise SpecError("place", place, f"must be from 0 to {_COUNT_MAX}")
    if ready_file is not None and not ready_file.parent.is_dir():
        raise SpecError("ready_file", str(ready_file), "must be in a folder that exists")
    if processes is not None and not 1 <= processes <= _PROCESSES_MAX:
        raise SpecError("processes", processes, f"must be from 1 to {_PROCESSES_MAX}")


def _run_one(options: WorkerOptions) -> None:
    from downpour.cluster.worker.process import run_worker

    try:
        run_worker(options, _say, say_where)
    except DownpourError as error:
        raise (ComeAgain(str(error)) if manager_may_come(error) else error) from error


def _say(here: Address, manager: Address, device: str) -> None:
    note(f"worker at {here}, manager {manager}, trains on {device}")


def _run_several(options: WorkerOptions, count: int, log: Path | None) -> None:
    """Run workers as processes; return the exit status of the first one that failed."""
    if not 1 <= count <= _COUNT_MAX:
        raise SpecError("count", count, f"must be from 1 to {_COUNT_MAX}")
    if options.advertise.rpartition(":")[2].isdigit():
        raise SpecError("advertise", options.advertise, "needs no port with --count")
    from downpour.cluster.launchers.engine_cluster import run_group
    from downpour.cluster.worker.process import default_name

    named = replace(options, name=options.name or default_name(os.environ))
    ends = run_group(named, count, log, waiting_for_leave())
    for name, ended in ends.items():
        if ended.status != 0:
            note(f"{name}: {ended.reason or f'it exited with status {ended.status}'}")
            raise typer.Exit(ended.status or 1)
