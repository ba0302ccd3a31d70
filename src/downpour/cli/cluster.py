"""`downpour manager` and `downpour worker`: the processes of a cluster, each in the foreground."""

from __future__ import annotations

import logging
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from downpour.base.devices import NAMES, check_device
from downpour.base.errors import ComeAgain, DownpourError, SpecError
from downpour.base.labels import checked_labels
from downpour.base.values import DEFAULT_PORT
from downpour.cli.options import (
    SHARED,
    ConnectSeconds,
    DataDir,
    Location,
    Manager,
    Patience,
    number,
    path_option,
    whole_number,
)
from downpour.cli.printing import note
from downpour.cli.trust_options import with_credentials
from downpour.cluster.manager.options import ManagerOptions, checked_patience
from downpour.cluster.worker.options import WorkerOptions
from downpour.host.credentials import TOKEN_NAME, Credentials
from downpour.host.extras import require
from downpour.host.paths import is_object_store
from downpour.host.signals import on_leaving, waiting_for_leave
from downpour.host.text import set_up_log
from downpour.network.discovery.waiting import CONNECT_SECONDS, checked_seconds, manager_may_come

_COUNT_MAX = 1000
_PROCESSES_MAX = 256
_SIGNALLED = 128  # shells report a process that a signal has ended as this and its number

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
        help="Where to listen.",
        show_default="loopback if the manager is on it, else all networks",
    ),
]
Advertise = Annotated[
    str,
    typer.Option(
        metavar="HOST[:PORT]",
        help="Where the manager calls this worker back.",
        show_default="the address that reaches the manager",
    ),
]
Device = Annotated[
    str,
    typer.Option(
        metavar=NAMES, help="Where this worker trains; auto: on the best device that it has."
    ),
]
DrainSeconds = Annotated[
    float,
    typer.Option(
        metavar="X",
        parser=number,
        help="How long the worker may take to end its task when a signal tells it to leave. "
        "What it cannot end is saved and handed back.",
    ),
]
AloneSeconds = Annotated[
    float,
    typer.Option(
        metavar="X",
        parser=number,
        help="Leave after this long without a manager's answer; 0: wait for one for ever.",
    ),
]
ReadyFile = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        parser=path_option("ready_file"),
        help="A file that exists, and holds the worker's address, while it is registered.",
        show_default="none",
    ),
]
Labels = Annotated[
    list[str] | None,
    typer.Option(
        "--label",
        metavar="KEY=VALUE",
        help="Shown with this worker by `downpour status` and `downpour ps`. Repeatable.",
        show_default=False,
    ),
]
Processes = Annotated[
    int | None,
    typer.Option(
        "--processes",
        metavar="N",
        parser=whole_number,
        help="Train each batch with N processes at most; the bytes are those of as many as the "
        "spec asks for.",
        show_default="as many as the spec asks for",
    ),
]
Count = Annotated[
    int,
    typer.Option(
        "--count",
        metavar="N",
        parser=whole_number,
        help="How many workers to run, each a process of its own: NAME-1, NAME-2 and so on, with "
        "ports that count up.",
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


@with_credentials
def manager(
    shared: Location = SHARED,
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
    log: LogFile = None,
    verbose: Verbose = False,
    credentials: Credentials,
) -> None:
    """Serve as the manager until Ctrl-C.

    It accepts experiments and assigns their shards to workers. Experiments that an earlier manager
    of the same shared directory has not finished go on. If other machines can reach it, a token or
    TLS is required.
    """
    _begin(verbose=verbose, log=log)
    if metrics_port is not None:
        require("--metrics-port", "metrics")
    if make_token:
        credentials = _with_token(credentials, shared)
    from downpour.cluster.manager.process import run_manager

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
    manager: Manager = "",
    shared: Location = SHARED,
    name: WorkerName = "",
    host: WorkerHost = "",
    port: Port = 0,
    advertise: Advertise = "",
    device: Device = "cpu",
    metrics_port: MetricsPort = None,
    *,
    connect_seconds: ConnectSeconds = CONNECT_SECONDS,
    drain_seconds: DrainSeconds = 0.0,
    alone_seconds: AloneSeconds = 0.0,
    ready_file: ReadyFile = None,
    label: Labels = None,
    processes: Processes = None,
    count: Count = 1,
    log: LogFile = None,
    verbose: Verbose = False,
    credentials: Credentials,
) -> None:
    """Serve as a worker until Ctrl-C.

    It trains the shards that the manager assigns. It may be started before the manager, and finds
    the leader through the shared directory.

    SIGTERM, SIGHUP, SIGUSR1, SIGUSR2 and Ctrl-C tell it to leave; a second Ctrl-C ends it at once.
    The exit status is 75 if no manager came: the same command may succeed later. It is 2 for what
    you can correct.
    """
    check_device(device)
    if ready_file is not None and not ready_file.parent.is_dir():
        raise SpecError("ready_file", str(ready_file), "must be in a folder that exists")
    if processes is not None and not 1 <= processes <= _PROCESSES_MAX:
        raise SpecError("processes", processes, f"must be from 1 to {_PROCESSES_MAX}")
    _begin(verbose=verbose, log=log)
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
        connect_seconds=checked_seconds("connect_seconds", connect_seconds),
        drain_seconds=checked_seconds("drain_seconds", drain_seconds),
        alone_seconds=checked_seconds("alone_seconds", alone_seconds),
        ready_file=str(ready_file or ""),
        labels=checked_labels(label or ()),
        processes=processes,
        credentials=credentials,
    )
    if count == 1:
        _run_one(options)
    else:
        _run_several(options, count, log)


def _run_one(options: WorkerOptions) -> None:
    from downpour.cluster.worker.process import run_worker

    try:
        run_worker(options, lambda here, to: note(f"worker at {here}, manager {to}"), _say_where)
    except DownpourError as error:
        raise (ComeAgain(str(error)) if manager_may_come(error) else error) from error


def _run_several(options: WorkerOptions, count: int, log: Path | None) -> None:
    """Run workers as processes; the exit status is that of the first that did not end well."""
    if not 1 <= count <= _COUNT_MAX:
        raise SpecError("count", count, f"must be from 1 to {_COUNT_MAX}")
    if options.advertise.rpartition(":")[2].isdigit():
        raise SpecError("advertise", options.advertise, "needs no port with --count")
    from downpour.cluster.launchers.local_group import run_group
    from downpour.cluster.worker.process import default_name

    named = replace(options, name=options.name or default_name(os.environ))
    ends = run_group(named, count, log, waiting_for_leave())
    for name, ended in ends.items():
        if ended.status != 0:
            note(f"{name}: {ended.reason or f'it ended with status {ended.status}'}")
            raise typer.Exit(ended.status or 1)


def _begin(*, verbose: bool, log: Path | None) -> None:
    """Set up the log, and end at a signal, until something is running that has to end in order.

    The kernel drops SIGTERM for the first process of a container unless that handles it.
    """
    on_leaving(lambda number: sys.exit(_SIGNALLED + number))
    level = logging.INFO if verbose else logging.WARNING
    try:
        set_up_log(level, "%(asctime)s %(levelname)s %(name)s: %(message)s", log)
    except OSError as error:
        raise SpecError("log", str(log), f"cannot be written: {error.strerror}") from None
    logging.getLogger("downpour.membership").setLevel(logging.INFO)


def _say_where(url: str) -> None:
    note(f"metrics at {url}")


def _with_token(credentials: Credentials, shared: Path | str) -> Credentials:
    from downpour.files.store.token import make_token

    if not credentials.token_file and is_object_store(shared):
        accepted = "needs --token-file, because a token does not belong into an object store"
        raise SpecError("make_token", value=True, accepted=accepted)
    path = Path(credentials.token_file or Path(shared) / TOKEN_NAME)
    if make_token(path):
        note(f"made a token: {path}")
    return replace(credentials, token_file=str(path))
