"""Options that would change nothing beside the others are refused: their user expects a change."""

from __future__ import annotations

from collections.abc import Collection

import typer

from downpour.errors import SpecError

_TYPED = "COMMANDLINE"


def refuse_unused(context: typer.Context, options: Collection[str], why: str) -> None:
    """Refuse these of a command's options where they stand on the command line.

    What a variable of the environment says is meant for many commands, and is no contradiction.

    Raises:
        SpecError: names the option, its value and why it would change nothing.
    """
    for name, value in context.params.items():
        source = context.get_parameter_source(name)
        if name in options and source is not None and source.name == _TYPED:
            raise SpecError(name.replace("_", "-"), value, why)


def refuse_own_data(context: typer.Context, manager: str) -> None:
    """Refuse folders of this machine where a manager elsewhere trains, with folders of its own."""
    if manager:
        refuse_unused(
            context, {"shared", "data_dir"}, "is the manager's own, which --manager names"
        )


def refuse_both(**flags: bool) -> None:
    """Refuse two flags of which each says what to do instead of the other.

    Raises:
        SpecError: both were given.
    """
    given = [f"--{name.replace('_', '-')}" for name, flag in flags.items() if flag]
    if len(given) > 1:
        raise SpecError("options", " ".join(given), "must be one of them")
