"""`downpour certs`: certificates for mutual TLS, and the options that name them."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from downpour.cli.options import path_option, whole_number
from downpour.cli.printing import out
from downpour.host.extras import require

if TYPE_CHECKING:
    from downpour.cluster.operations.certificates import Certified, Issued


def certs(
    names: Annotated[
        list[str],
        typer.Argument(
            metavar="NAME...",
            help="A machine's names and IP addresses, separated by commas, such as "
            "first,first.lab,10.0.0.5; the first one names its files.",
        ),
    ],
    folder: Annotated[
        Path,
        typer.Option(
            "--out",
            metavar="DIR",
            parser=path_option("out"),
            help="The folder to write the files to.",
        ),
    ] = Path("certs"),
    days: Annotated[
        int,
        typer.Option(
            metavar="N", parser=whole_number, help="How long the certificates are valid, in days."
        ),
    ] = 365,
) -> None:
    """Make certificates for mutual TLS, one for each machine.

    The first call in a folder also makes an authority. Later calls use it to add machines. The
    command never overwrites a file.
    """
    require("downpour certs", "certs")
    from downpour.cluster.operations.certificates import issue

    issued = issue(names, folder, days=days)
    for line in _report(issued):
        out().print(line, highlight=False, markup=False, soft_wrap=True)


def _report(issued: Issued) -> list[str]:
    lines = []
    if issued.authority_is_new:
        lines.append(f"{issued.authority}: the authority; every machine needs a copy")
        lines.append(
            f"{issued.authority_key}: its key, which signs certificates; no machine needs it"
        )
    for one in issued.machines:
        lines.append(f"{one.certificate}: for {one.machine}; valid until {one.until:%Y-%m-%d}")
        lines.append(f"{one.key}: its key")
    for one in issued.machines:
        lines += ["", f"On {one.machine.names[0]}, as options of every command:", ""]
        lines += _usage(one, issued.authority)
    return lines


def _usage(one: Certified, authority: Path) -> list[str]:
    """Return lines that name the three files as options, and as variables."""
    given = {"cert": one.certificate, "key": one.key, "ca": authority}
    paths = {word: shlex.quote(str(path)) for word, path in given.items()}
    options = " ".join(f"--tls-{word} {path}" for word, path in paths.items())
    variables = " ".join(f"DOWNPOUR_TLS_{word.upper()}={path}" for word, path in paths.items())
    return [f"    {options}", "", "or in its environment:", "", f"    export {variables}"]
