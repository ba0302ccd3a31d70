"""`downpour ping`: does a manager or a worker answer? For people and for health checks."""

from __future__ import annotations

from typing import Annotated

import typer

from downpour.cli.printing import say
from downpour.cli.trust_options import with_credentials
from downpour.credentials import Credentials
from downpour.manager.options import DEFAULT_MANAGER

_TIMEOUT_SECONDS = 5.0


@with_credentials
def ping(
    address: Annotated[
        str,
        typer.Argument(metavar="HOST:PORT", envvar="DOWNPOUR_MANAGER", help="The address to call."),
    ] = DEFAULT_MANAGER,
    *,
    worker: Annotated[bool, typer.Option("--worker", help="Call a worker, not a manager.")] = False,
    credentials: Credentials,
) -> None:
    """Check whether a manager, or a worker, answers.

    Prints what answers. If nothing does, prints the reason in one line, with an exit status other
    than 0.
    """
    from downpour.rpc import ManagerClient, Trust, WorkerClient, parse_address

    where, trust = parse_address(address), Trust.load(credentials)
    if worker:
        with WorkerClient(where, trust=trust, timeout_seconds=_TIMEOUT_SECONDS) as client:
            info = client.ping()
            doing = f", training {info.running}" if info.running else ""
            line = f"worker {info.name} at {where}, downpour {info.version}{doing}"
    else:
        with ManagerClient(where, trust=trust, timeout_seconds=_TIMEOUT_SECONDS) as manager:
            line = f"manager at {where}, downpour {manager.describe().version}"
    say(line)
