"""The file for a command's figure: we refuse a bad name before the command computes anything."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import typer

from downpour.base.errors import SpecError
from downpour.cli.options import path_option

_FORMS = (".png", ".svg")


def figure_option(text: str, *, shown_default: str) -> Any:
    """Return the option `--to FILE` of a command that draws a figure, with its help."""
    return typer.Option(
        "--to",
        metavar="FILE",
        parser=path_option("to"),
        help=f"{text} into this .png or .svg file.",
        show_default=shown_default,
    )


def check_figure(field: str, path: Path | None) -> None:
    """Check the file to write a figure to.

    Raises:
        SpecError: the suffix is not allowed, the path is not a file, or its folder is missing.
    """
    if path is None:
        return
    other = path.exists() and not path.is_file()
    if path.suffix not in _FORMS or not path.parent.is_dir() or other:
        accepted = f"must end with {' or '.join(_FORMS)}, in a folder that exists"
        raise SpecError(field, str(path), accepted)
