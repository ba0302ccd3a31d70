"""`--on`: where a command's workers run."""

from __future__ import annotations

from typing import Annotated

import typer

from downpour.launchers import LAUNCHERS

On = Annotated[
    str,
    typer.Option(
        "--on",
        metavar="|".join(LAUNCHERS),
        help="Where the workers run: as processes of this machine, or as threads of this process, "
        "for a debugger.",
    ),
]
