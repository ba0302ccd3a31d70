"""Refuses options that would have no effect next to others, because the user expects one."""

from __future__ import annotations

from collections.abc import Collection

import typer

from downpour.base.errors import SpecError
from downpour.cluster.launchers.launch_table import owners
from downpour.learning.allowlist import VARIABLE

_TYPED = "COMMANDLINE"


def refuse_unused(context: typer.Context, options: Collection[str], why: str) -> None:
    """Refuse these options of a command if they were given on the command line.

    An environment variable serves many commands, so it never conflicts.

    Raises:
        SpecError: names the option, its value and the reason why it would have no effect.
    """
    for name, value in context.params.items():
        source = context.get_parameter_source(name)
        if name in options and source is not None and source.name == _TYPED:
            raise SpecError(name.replace("_", "-"), value, why)


def refuse_own_data(context: typer.Context, manager: str) -> None:
    """Refuse this machine's folders if a manager elsewhere trains: it has its own folders."""
    if manager:
        refuse_unused(
            context,
            {"shared", "data_dir"},
            "cannot go with --manager: that manager has its own",
        )
        accepted = f"is for runs here; start manager and workers with {VARIABLE} instead"
        refuse_unused(context, {"allow"}, accepted)
        accepted = "cannot go with --manager: that manager has workers"
        refuse_unused(context, {"on", *owners()}, accepted)


def refuse_both(**flags: bool) -> None:
    """Refuse flags that exclude each other.

    Raises:
        SpecError: more than one was given.
    """
    given = [f"--{name.replace('_', '-')}" for name, flag in flags.items() if flag]
    if len(given) > 1:
        raise SpecError("options", " ".join(given), "cannot be combined; give one of them")
