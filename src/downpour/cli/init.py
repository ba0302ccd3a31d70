"""`downpour init`: a small project to begin from."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from downpour.cli.options import path_option
from downpour.cli.printing import say
from downpour.cluster.operations.templates import NEEDED, TEMPLATES, write_template
from downpour.host.extras import is_installed


def init(
    folder: Annotated[
        Path | None,
        typer.Argument(
            metavar="DIR",
            parser=path_option("DIR"),
            help="The folder to write, made if it is missing.",
            show_default="./TEMPLATE",
        ),
    ] = None,
    template: Annotated[
        str,
        typer.Option("--template", metavar="|".join(TEMPLATES), help="What to begin from."),
    ] = "classifier",
) -> None:
    """Write a small project to begin from.

    It has a task, its spec, and how to run it, and trains at once on examples that it makes; yours
    go in their place. Nothing is overwritten. The command that trains it is printed,
    after one that installs what is missing.
    """
    folder = folder or Path(template)
    module = write_template(template, folder)
    if missing := [package for package in NEEDED.get(template, ()) if not is_installed(package)]:
        say(f"pip install {' '.join(missing)}")
    say(f"downpour run {shlex.quote(str(folder / 'spec.toml'))} --allow {module}")
