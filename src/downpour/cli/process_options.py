"""The options and the start-up code that `downpour manager` and `downpour worker` share."""

from __future__ import annotations

import logging
import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from downpour.base.devices import NAMES
from downpour.base.errors import SpecError
from downpour.cli import streams
from downpour.cli.exit_status import SIGNALLED
from downpour.cli.options import (
    number,
    path_option,
    whole_number,
)
from downpour.cli.printing import note
from downpour.host.credentials import TOKEN_NAME, Credentials
from downpour.host.paths import is_object_store
from downpour.host.signals import on_leaving
from downpour.host.text import set_up_log

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
    streams.outlive_readers()
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
    from downpour.files.store.token import make_token

    if not credentials.token_file and is_object_store(shared):
        accepted = "needs --token-file, because a token does not belong in an object store"
        raise SpecError("make_token", value=True, accepted=accepted)
    path = Path(credentials.token_file or Path(shared) / TOKEN_NAME)
    if make_token(path):
        note(f"made a token: {path}")
    return replace(credentials, token_file=str(path))
