"""`downpour manager` and `downpour worker`: the processes of a cluster, each in the foreground."""

from __future__ import annotations

import logging
from typing import Annotated

import typer

from downpour.cli.options import MANAGER, SHARED, DataDir, Manager, Shared, whole_number
from downpour.cli.printing import note
from downpour.errors import SpecError
from downpour.manager.options import DEFAULT_PORT, ManagerOptions
from downpour.worker.options import WorkerOptions

DEVICES = ("cpu", "cuda")

Port = Annotated[
    int,
    typer.Option("--port", metavar="N", parser=whole_number, help="The port; 0: any that is free."),
]
Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="Say more of what goes on.")]


def manager(
    shared: Shared = SHARED,
    host: Annotated[
        str,
        typer.Option(
            metavar="ADDRESS", help="Where to listen; 0.0.0.0 or :: for all of its networks."
        ),
    ] = "127.0.0.1",
    port: Port = DEFAULT_PORT,
    data_dir: DataDir = None,
    *,
    verbose: Verbose = False,
) -> None:
    """Serve as the manager until Ctrl-C.

    It takes experiments in and hands their shards to workers.
    """
    _log(verbose=verbose)
    from downpour.manager.process import run_manager

    options = ManagerOptions(shared=str(shared), host=host, port=port, data_dir=str(data_dir or ""))
    run_manager(options, lambda address: note(f"manager at {address}, shared directory {shared}"))


def worker(
    manager: Manager = MANAGER,
    shared: Shared = SHARED,
    name: Annotated[
        str, typer.Option(metavar="NAME", help="What to call it.", show_default="the host's name")
    ] = "",
    host: Annotated[
        str,
        typer.Option(
            metavar="ADDRESS",
            help="Where to listen.",
            show_default="loopback if the manager is there, else everywhere",
        ),
    ] = "",
    port: Port = 0,
    advertise: Annotated[
        str,
        typer.Option(
            metavar="HOST",
            help="The name or address that the manager calls this worker back at.",
            show_default="the address that reaches the manager",
        ),
    ] = "",
    device: Annotated[
        str, typer.Option(metavar="|".join(DEVICES), help="Where this worker trains.")
    ] = "cpu",
    *,
    verbose: Verbose = False,
) -> None:
    """Serve as a worker until Ctrl-C.

    It trains the shards that the manager hands out.
    """
    if device not in DEVICES:
        raise SpecError("device", device, f"must be {' or '.join(DEVICES)}")
    _log(verbose=verbose)
    options = WorkerOptions(
        manager=manager,
        shared=str(shared),
        name=name,
        host=host,
        port=port,
        advertise=advertise,
        device=device,
    )
    from downpour.worker.process import run_worker

    run_worker(options, lambda address: note(f"worker at {address}, manager {manager}"))


def _log(*, verbose: bool) -> None:
    level = logging.INFO if verbose else logging.WARNING
    logging.basicConfig(level=level, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
