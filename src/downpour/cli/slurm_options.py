"""The options of `--on slurm`, in sbatch's own terms."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from downpour.cli.options import ManagerHost, number
from downpour.cluster.launchers import Launcher, LaunchPlan
from downpour.cluster.launchers.slurm import SlurmEngine, on_slurm
from downpour.cluster.launchers.slurm_script import SlurmOptions

_PANEL = "Slurm"
OPTIONS: dict[str, Any] = {
    "partition": Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="The partition.",
            show_default="the cluster's own",
            rich_help_panel=_PANEL,
        ),
    ],
    "account": Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="The account.", show_default="your own", rich_help_panel=_PANEL
        ),
    ],
    "time": Annotated[
        str | None,
        typer.Option(
            metavar="LIMIT",
            help="A worker's time limit: MINUTES, H:MM:SS or D-HH:MM:SS. Another one follows it.",
            show_default="the partition's",
            rich_help_panel=_PANEL,
        ),
    ],
    "gres": Annotated[
        str | None,
        typer.Option(
            metavar="GRES",
            help="A worker's generic resources, such as gpu:1.",
            show_default=False,
            rich_help_panel=_PANEL,
        ),
    ],
    "sbatch": Annotated[
        list[str] | None,
        typer.Option(
            metavar="OPTION",
            help="A further option of sbatch, such as --sbatch=--mem=4G. Repeatable.",
            show_default=False,
            rich_help_panel=_PANEL,
        ),
    ],
    "signal": Annotated[
        str | None,
        typer.Option(
            metavar="NAME@SECONDS",
            help="The signal at which a worker leaves, and how long before its time limit.",
            show_default="USR2@120",
            rich_help_panel=_PANEL,
        ),
    ],
    "drain_seconds": Annotated[
        float | None,
        typer.Option(
            metavar="X",
            parser=number,
            help="How long a worker that leaves may take to end its task; what it cannot end is "
            "saved, and goes on elsewhere. Less than the cluster's KillWait, 30 by default.",
            show_default="0",
            rich_help_panel=_PANEL,
        ),
    ],
    "manager_host": ManagerHost,
}


def launcher(given: Mapping[str, Any]) -> Launcher:
    """Return the launcher that the given options ask for."""
    return on_slurm(_options(given))


def shown(given: Mapping[str, Any], plan: LaunchPlan) -> str:
    """Return the batch script of a plan's workers."""
    return SlurmEngine(_options(given)).planned(plan)


def _options(given: Mapping[str, Any]) -> SlurmOptions:
    return SlurmOptions(**{**given, "sbatch": tuple(given.get("sbatch", ()))})
