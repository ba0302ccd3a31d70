"""The commands by name: ours, then those of installed packages.

We import only the command that the user named. Importing all takes 0.4 s of processor time, which
every health check, manager and worker would pay at its start.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.main import get_command

from downpour.base import VERSION
from downpour.base.errors import SpecError
from downpour.base.names import Family, Member
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

COMPARE = "Compare settings, policies and predictors"

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
    COMPARE: {"grid": "studies.grid", "tune": "studies.tune", "report": "drawings.report"},
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

_OTHERS = "More commands"


@dataclass(frozen=True, slots=True)
class CommandKind:
    """An installed package's command: a function, or a group of commands, and its title."""

    command: Callable[..., Any]
    title: str = _OTHERS


COMMANDS = Family(
    "command",
    "downpour.commands",
    {
        name: Member(f"downpour.cli.{place.replace('.', ':')}")
        for group in GROUPS.values()
        for name, place in group.items()
    },
)
_TITLES = {name: title for title, group in GROUPS.items() for name in group}


def command_line(words: Sequence[str] = ()) -> Callable[..., Any]:
    """Return a function that runs a command line; it knows only the command that the words name."""
    return _built(words[0] if words and words[0] in COMMANDS else "")


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
    for name in [only] if only else COMMANDS:
        try:
            kind = _kind(name)
        except SpecError as error:  # a broken package costs its own command, and no other
            if only:
                raise
            app.command(name, help=str(error).partition(": ")[2], rich_help_panel=_OTHERS)(
                lambda: None
            )
            continue
        if isinstance(kind.command, typer.Typer):
            app.add_typer(kind.command, name=name, rich_help_panel=kind.title)
        else:
            app.command(name, cls=Command, rich_help_panel=kind.title)(kind.command)
    return get_command(app)


def _kind(name: str) -> CommandKind:
    command = COMMANDS[name]
    if isinstance(command, CommandKind):
        return command
    return CommandKind(command, _TITLES.get(name, _OTHERS))


_built = cache(build)
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
