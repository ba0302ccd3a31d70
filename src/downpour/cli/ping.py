"""`downpour ping`: whether a manager or a worker answers, for people and for health checks."""

from __future__ import annotations

from typing import Annotated

import typer

from downpour.cli.printing import say
from downpour.cli.trust_options import with_credentials
from downpour.credentials import Credentials
from downpour.manager.options import DEFAULT_MANAGER

_PATIENCE_SECONDS = 5.0


@with_credentials
def ping(
    address: Annotated[
        str,
        typer.Argument(metavar="HOST:PORT", envvar="DOWNPOUR_MANAGER", help="The address to call."),
    ] = DEFAULT_MANAGER,
    *,
    worker: Annotated[
        bool, typer.Option("--worker", help="A worker should answer, not a manager.")
    ] = False,
    credentials: Credentials,
) -> None:
    """Ask a manager, or a worker, whether it is there.

    It prints what answers there. Where nothing does, it prints why in one line, and the exit status
    is not 0.
    """
    from downpour.rpc import ManagerClient, Trust, WorkerClient, parse_address

    where, trust = parse_address(address), Trust.load(credentials)
    if worker:
        with WorkerClient(where, trust=trust, timeout_seconds=_PATIENCE_SECONDS) as found:
            info = found.ping()
            doing = f", training {info.running}" if info.running else ""
            told = f"worker {info.name} at {where}, downpour {info.version}{doing}"
    else:
        with ManagerClient(where, trust=trust, timeout_seconds=_PATIENCE_SECONDS) as manager:
            told = f"manager at {where}, downpour {manager.describe().version}"
    say(told)
