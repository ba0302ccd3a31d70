"""The options of `--on ray`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from downpour.cli.options import number
from downpour.cluster.launchers import Launcher
from downpour.cluster.launchers.ray import RayOptions, on_ray

_PANEL = "Ray"
OPTIONS: dict[str, Any] = {
    "ray_address": Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT|auto|local",
            help="The Ray cluster; auto: the one that runs here, or that RAY_ADDRESS names; local: "
            "one of this command's own.",
            show_default="auto",
            rich_help_panel=_PANEL,
        ),
    ],
    "cpus_per_worker": Annotated[
        float | None,
        typer.Option(
            metavar="X",
            parser=number,
            help="Processors that Ray reserves for a worker.",
            show_default="1",
            rich_help_panel=_PANEL,
        ),
    ],
    "gpus_per_worker": Annotated[
        float | None,
        typer.Option(
            metavar="X",
            parser=number,
            help="Accelerators that Ray reserves for a worker.",
            show_default="0",
            rich_help_panel=_PANEL,
        ),
    ],
    "ray_wait_seconds": Annotated[
        float | None,
        typer.Option(
            metavar="X",
            parser=number,
            help="How long to wait until Ray has what the workers need.",
            show_default="5",
            rich_help_panel=_PANEL,
        ),
    ],
}


def launcher(given: Mapping[str, Any]) -> Launcher:
    """Return the launcher that the given options ask for."""
    return on_ray(RayOptions(**given))
