"""`downpour ping`: does a manager or a worker answer? For people and for health checks."""

from __future__ import annotations

from typing import Annotated

import typer

from downpour.base.errors import SpecError
from downpour.cli.options import SharedIfSeen, with_credentials
from downpour.cli.printing import say
from downpour.host.paths import Credentials

_TIMEOUT_SECONDS = 5.0


@with_credentials
def ping(
    address: Annotated[
        str,
        typer.Argument(
            metavar="HOST:PORT",
            envvar="DOWNPOUR_MANAGER",
            help="The address to call.",
            show_default="that of the leader in the shared directory",
        ),
    ] = "",
    shared: SharedIfSeen = None,
    *,
    worker: Annotated[bool, typer.Option("--worker", help="Call a worker, not a manager.")] = False,
    credentials: Credentials,
) -> None:
    """Check whether a manager, or a worker, answers.

    Prints who answers. Without an answer, it prints the reason in one line and exits with a status
    other than 0.
    """
    from downpour.network.discovery.managers import managers_for
    from downpour.network.rpc import Trust, WorkerClient, parse_address

    trust = Trust.load(credentials)
    if worker:
        if not address:
            raise SpecError("HOST:PORT", address, "must be the worker's address with --worker")
        where = parse_address(address)
        with WorkerClient(where, trust=trust, timeout_seconds=_TIMEOUT_SECONDS) as client:
            info = client.ping()
            doing = f", training {info.running}" if info.running else ""
            line = f"worker {info.name} at {where}, downpour {info.version}{doing}"
    else:
        managers = managers_for(address, shared, trust, timeout_seconds=_TIMEOUT_SECONDS)
        with managers.first() as manager:
            managers.check(manager)
            line = f"manager at {manager.address}, downpour {manager.describe().version}"
    say(line)
