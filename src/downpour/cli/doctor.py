"""`downpour doctor`: check the shared directory from this machine and print the findings."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from downpour.cli.options import SHARED, AsJson, Location
from downpour.cli.printing import err, out, print_json
from downpour.cli.trust_options import with_credentials
from downpour.credentials import Credentials

if TYPE_CHECKING:
    from rich.table import Table

    from downpour.operations.finding import Finding

_STYLES = {"ok": "green", "warning": "yellow", "failed": "red", "not checked": "dim"}
_MENDABLE = 2
_TIMEOUT_SECONDS = 5.0


@with_credentials
def doctor(
    shared: Location = SHARED,
    manager: Annotated[
        str,
        typer.Option(
            "--manager",
            envvar="DOWNPOUR_MANAGER",
            metavar="HOST:PORT",
            help="A manager that should have the same shared directory; not checked without one.",
        ),
    ] = "",
    *,
    as_json: AsJson = False,
    credentials: Credentials,
) -> None:
    """Check the shared directory as this machine sees it.

    A failed check says what to change, and makes the exit status 2; a warning does not. The command
    takes a few seconds and leaves no files behind.
    """
    from downpour.operations.doctor import is_healthy

    findings = _findings(shared, manager, credentials)
    healthy = is_healthy(findings)
    if as_json:
        checks = [{"check": name, **asdict(finding)} for name, finding in findings.items()]
        print_json({"healthy": healthy, "checks": checks})
    else:
        out().print(_table(findings))
    if not healthy:
        raise typer.Exit(_MENDABLE)


def _findings(shared: Path, manager: str, credentials: Credentials) -> Mapping[str, Finding]:
    from downpour.operations.doctor import diagnose
    from downpour.rpc import ManagerClient, Trust, parse_address

    with ExitStack() as stack:
        client = None
        if manager:
            where, trust = parse_address(manager, field="manager"), Trust.load(credentials)
            client = ManagerClient(where, trust=trust, timeout_seconds=_TIMEOUT_SECONDS)
            stack.enter_context(client)
        shown = stack.enter_context(err().status("looking"))
        return diagnose(shared, client, lambda check: shown.update(f"looking at: {check}"))


def _table(findings: Mapping[str, Finding]) -> Table:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, header_style="bold")
    table.add_column("check", no_wrap=True)
    table.add_column("result", no_wrap=True)
    table.add_column("what was seen", overflow="fold")
    for name, finding in findings.items():
        text = Text(finding.seen)
        if finding.change:
            text.append(f"\n{finding.change}", style=_STYLES[finding.verdict])
        table.add_row(name, Text(finding.verdict, style=_STYLES[finding.verdict]), text)
    return table
