"""The commands by name: ours, then those of installed packages.

We import only the command that the user named. Importing all takes 0.4 s of processor time, which
every health check, manager and worker would pay at its start.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.main import get_command

from downpour.base.version import VERSION
from downpour.cli.help import Command, Group

if TYPE_CHECKING:  # for the rules of layers and tests, which read imports
    from downpour.cli import (  # noqa: F401
        clients,
        dashboard,
        demo,
        doctor,
        drawings,
        init,
        logs,
        ping,
        process_commands,
        run,
        studies,
        trained,
        up_and_down,
    )

GROUPS = {
    "Train a model": {
        "init": "init.init",
        "demo": "demo.demo",
        "run": "run.run",
        "submit": "clients.submit",
        "cancel": "clients.cancel",
        "splits": "drawings.splits",
    },
    "Watch an experiment": {
        "status": "clients.status",
        "watch": "clients.watch",
        "dashboard": "dashboard.dashboard",
        "list": "clients.list_experiments",
        "results": "clients.results",
        "logs": "logs.logs",
        "trace": "drawings.trace",
    },
    "Use a trained model": {
        "evaluate": "trained.evaluate",
        "predict": "trained.predict",
        "export": "trained.export",
        "replay": "trained.replay",
    },
    "Compare settings, policies and predictors": {
        "grid": "studies.grid",
        "tune": "studies.tune",
        "report": "drawings.report",
    },
    "Run a cluster": {
        "up": "up_and_down.up",
        "ps": "up_and_down.ps",
        "down": "up_and_down.down",
        "manager": "process_commands.manager",
        "worker": "process_commands.worker",
    },
    "Check and secure machines": {
        "doctor": "doctor.doctor",
        "ping": "ping.ping",
        "certs": "doctor.certs",
    },
}
"""By title in the help: each command's name, and the place of its function."""

ENTRY_POINTS = "downpour.commands"
"""The group of entry points that bring more commands. `TITLE` in a command's module groups it."""

_FUNCTIONS = {name: place for group in GROUPS.values() for name, place in group.items()}
_TITLES = {name: title for title, group in GROUPS.items() for name in group}
_OTHERS = "More commands"


def command_line(words: Sequence[str] = ()) -> Callable[..., Any]:
    """Return a function that runs a command line; it knows only the command that the words name."""
    named = words[0] if words else ""
    return _kept(named if named in _FUNCTIONS or named in _installed() else "")


def build(only: str = "") -> Callable[..., Any]:
    """Build the parser of one command, or of all."""
    app = typer.Typer(
        name="downpour",
        help="Train on the machines you have: uneven workers, one shared folder, no lost progress.",
        cls=Group,
        context_settings={"help_option_names": ["-h", "--help"]},
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
    )
    app.callback()(_downpour)
    for name in [only] if only else [*_FUNCTIONS, *_installed()]:
        found, title = _loaded(name)
        if isinstance(found, typer.Typer):
            app.add_typer(found, name=name, rich_help_panel=title)
        else:
            app.command(name, cls=Command, rich_help_panel=title)(found)
    return get_command(app)


def _loaded(name: str) -> tuple[Any, str]:
    """Return a command's function, or its group of commands, and its title in the help."""
    if name in _FUNCTIONS:
        module, _, attribute = _FUNCTIONS[name].partition(".")
        return getattr(import_module(f"downpour.cli.{module}"), attribute), _TITLES[name]
    point = _installed()[name]
    return point.load(), getattr(import_module(point.module), "TITLE", _OTHERS)


@cache
def _installed() -> dict[str, EntryPoint]:
    """Return the commands of installed packages; finding them takes 3 to 5 ms."""
    points = entry_points(group=ENTRY_POINTS)
    return {point.name: point for point in points if point.name not in _FUNCTIONS}


_kept = cache(build)
"""Once per process, because building all takes 60 ms."""


def _print_version(wanted: bool) -> None:  # noqa: FBT001 - an option's callback
    if wanted:
        typer.echo(f"downpour {VERSION}")
        raise typer.Exit


def _downpour(
    *,
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
) -> None:
    """Take the options before a command."""
