"""Refuses options that would have no effect beside the others, because their user expects one."""

from __future__ import annotations

from collections.abc import Collection

import typer

from downpour.base.errors import SpecError
from downpour.cluster.launchers.launch_table import owners
from downpour.learning.allowlist import VARIABLE

_TYPED = "COMMANDLINE"


def refuse_unused(context: typer.Context, options: Collection[str], why: str) -> None:
    """Refuse these options of a command if they were given on the command line.

    An environment variable is meant for many commands, so it is no conflict.

    Raises:
        SpecError: names the option, its value and why it would have no effect.
    """
    for name, value in context.params.items():
        source = context.get_parameter_source(name)
        if name in options and source is not None and source.name == _TYPED:
            raise SpecError(name.replace("_", "-"), value, why)


def refuse_own_data(context: typer.Context, manager: str) -> None:
    """Refuse this machine's folders if a manager elsewhere trains: it has folders of its own."""
    if manager:
        refuse_unused(
            context, {"shared", "data_dir"}, "is the manager's own, which --manager names"
        )
        accepted = f"is for runs here; manager and workers are started with {VARIABLE}"
        refuse_unused(context, {"allow"}, accepted)
        accepted = "is for workers of its own, and --manager names one that has workers"
        refuse_unused(context, {"on", *owners()}, accepted)


def refuse_both(**flags: bool) -> None:
    """Refuse flags that exclude each other.

    Raises:
        SpecError: more than one was given.
    """
    given = [f"--{name.replace('_', '-')}" for name, flag in flags.items() if flag]
    if len(given) > 1:
        raise SpecError("options", " ".join(given), "must be one of them")
