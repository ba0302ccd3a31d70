"""`downpour ping`: does a manager or a worker answer? For people and for health checks."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from downpour.base.errors import SpecError
from downpour.base.options import argument, flag
from downpour.cli import common
from downpour.cli.parameters import command
from downpour.cli.printing import say
from downpour.host.paths import Credentials

_TIMEOUT_SECONDS = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PingOptions:
    """The options of `downpour ping`."""

    address: str = argument(
        "The address to call.",
        "HOST:PORT",
        "",
        variable="DOWNPOUR_MANAGER",
        default="that of the leader in the shared directory",
    )
    shared: Path | str | None = common.shared_if_seen()
    worker: bool = flag("Call a worker, not a manager.")


@command
def ping(options: PingOptions, credentials: Credentials) -> None:
    """Check whether a manager, or a worker, answers.

    Prints who answers. Without an answer, it prints the reason in one line and exits with a status
    other than 0.
    """
    from downpour.network.discovery import managers_for
    from downpour.network.rpc import Trust, WorkerClient, parse_address

    trust = Trust.load(credentials)
    address = options.address
    if options.worker:
        if not address:
            raise SpecError("HOST:PORT", address, "must be the worker's address with --worker")
        where = parse_address(address)
        with WorkerClient(where, trust=trust, timeout_seconds=_TIMEOUT_SECONDS) as client:
            info = client.ping()
            doing = f", training {info.running}" if info.running else ""
            line = f"worker {info.name} at {where}, downpour {info.version}{doing}"
    else:
        managers = managers_for(address, options.shared, trust, timeout_seconds=_TIMEOUT_SECONDS)
        with managers.first() as manager:
            managers.check(manager)
            line = f"manager at {manager.address}, downpour {manager.describe().version}"
    say(line)
