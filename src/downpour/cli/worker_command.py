"""`downpour worker`: runs one or several workers until a signal tells them to leave."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from downpour.base.devices import AUTO, check_device
from downpour.base.errors import ComeAgain, DownpourError, SpecError
from downpour.base.labels import checked_labels
from downpour.cli.options import (
    SHARED,
    ConnectSeconds,
    Location,
    Manager,
)
from downpour.cli.printing import note
from downpour.cli.process_options import (
    AcceptCode,
    Advertise,
    AloneSeconds,
    Count,
    Device,
    DrainSeconds,
    Labels,
    LogFile,
    MetricsPort,
    Place,
    Port,
    Processes,
    ReadyFile,
    Verbose,
    WorkerHost,
    WorkerName,
    begin,
    say_where,
)
from downpour.cli.trust_options import with_credentials
from downpour.cluster.worker.options import WorkerOptions
from downpour.host.credentials import Credentials
from downpour.host.extras import require
from downpour.host.signals import waiting_for_leave
from downpour.network.discovery.waiting import CONNECT_SECONDS, checked_seconds, manager_may_come

if TYPE_CHECKING:
    from downpour.network.rpc import Address

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
    from downpour.cluster.launchers.local_group import run_group
    from downpour.cluster.worker.process import default_name

    named = replace(options, name=options.name or default_name(os.environ))
    ends = run_group(named, count, log, waiting_for_leave())
    for name, ended in ends.items():
        if ended.status != 0:
            note(f"{name}: {ended.reason or f'it exited with status {ended.status}'}")
            raise typer.Exit(ended.status or 1)
