"""The options that several commands share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from downpour.manager.options import DEFAULT_MANAGER, DEFAULT_SHARED
from downpour.paths import path_of


def whole_number(text: str) -> int:
    """Read a whole number.

    Raises:
        typer.BadParameter: it is none.
    """
    try:
        return int(text)
    except ValueError:
        raise typer.BadParameter(f"{text!r} is no whole number") from None


def number(text: str) -> float:
    """Read a number.

    Raises:
        typer.BadParameter: it is none.
    """
    try:
        return float(text)
    except ValueError:
        raise typer.BadParameter(f"{text!r} is no number") from None


def path_option(field: str) -> Callable[[str], Path]:
    """Make what reads a path; the usual parser looks at it, and waits where no Ctrl-C arrives."""

    def read(text: str) -> Path:
        return path_of(field, text)

    return read


Manager = Annotated[
    str,
    typer.Option(
        "--manager",
        envvar="DOWNPOUR_MANAGER",
        metavar="HOST:PORT",
        help="Where the manager answers.",
    ),
]
Shared = Annotated[
    Path,
    typer.Option(
        "--shared",
        envvar="DOWNPOUR_SHARED",
        metavar="DIR",
        parser=path_option("shared"),
        help="The shared directory, as this machine sees it.",
    ),
]
DataDir = Annotated[
    Path | None,
    typer.Option(
        "--data-dir",
        envvar="DOWNPOUR_DATA",
        metavar="DIR",
        help="A folder that has datasets, laid out as torchvision does (MNIST/raw/...).",
        exists=True,
        file_okay=False,
    ),
]
Patience = Annotated[
    float,
    typer.Option(
        "--patience",
        metavar="FACTOR",
        parser=number,
        help="Scales how long silence, standstill and missing files are borne.",
    ),
]
ConnectSeconds = Annotated[
    float,
    typer.Option(
        "--connect-seconds",
        metavar="X",
        parser=number,
        help="How long to wait for a manager that is not there yet.",
    ),
]
SharedIfSeen = Annotated[
    Path | None,
    typer.Option(
        "--shared",
        envvar="DOWNPOUR_SHARED",
        metavar="DIR",
        parser=path_option("shared"),
        help="The shared directory, where this machine sees it: it names the leading manager.",
        show_default="./shared_dir, if no --manager is given",
    ),
]
TensorBoard = Annotated[
    Path | None,
    typer.Option(
        "--tensorboard",
        metavar="DIR",
        parser=path_option("tensorboard"),
        help="Also write event files for TensorBoard, each run's into a folder of its own in DIR.",
        show_default="not written",
    ),
]
OutDir = Annotated[
    Path | None,
    typer.Option(
        "--out",
        metavar="DIR",
        parser=path_option("out"),
        help="Where results go.",
        show_default="./results/NAME",
    ),
]
ManagerElsewhere = Annotated[
    str,
    typer.Option(
        "--manager",
        metavar="HOST:PORT",
        help="Let this manager train, with the workers that it has.",
        show_default="processes of its own, on this machine",
    ),
]
Detach = Annotated[
    bool,
    typer.Option("--detach", help="Go on without this terminal; DIR/log.txt tells how far."),
]
OnlyStatus = Annotated[
    bool, typer.Option("--status", help="Only say how far it is; starts nothing.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")]
AsCsv = Annotated[bool, typer.Option("--csv", help="Print CSV, a row an epoch.")]
Experiment = Annotated[str, typer.Argument(metavar="ID", help="An experiment's identifier.")]
AnyExperiment = Annotated[
    str, typer.Argument(metavar="ID", help="An experiment; the active one where absent.")
]

MANAGER = DEFAULT_MANAGER
SHARED = Path(DEFAULT_SHARED)
RESULTS = Path("results")
