"""The options of `--on compose`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from downpour.cluster.launchers import Launcher, LaunchPlan
from downpour.cluster.launchers.compose import (
    DEFAULT_FILE,
    DEFAULT_IMAGE,
    ComposeEngine,
    ComposeOptions,
    on_compose,
)

_PANEL = "Compose"
"""The options that name files; in a TOML file they are relative to its folder."""
OPTIONS: dict[str, Any] = {
    "compose_file": Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="The compose file; its service `worker` says what a worker's container is.",
            show_default=DEFAULT_FILE,
            rich_help_panel=_PANEL,
        ),
    ],
    "image": Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="The image of the containers, which the compose file gets as DOWNPOUR_IMAGE.",
            show_default=f"DOWNPOUR_IMAGE, or {DEFAULT_IMAGE}",
            rich_help_panel=_PANEL,
        ),
    ],
}


def launcher(given: Mapping[str, Any]) -> Launcher:
    """Return the launcher that the given options ask for."""
    return on_compose(ComposeOptions(**given))


def shown(given: Mapping[str, Any], plan: LaunchPlan) -> str:
    """Return the command and the script of each of a plan's workers."""
    return ComposeEngine(ComposeOptions(**given)).planned(plan)
