"""`--on` and its options, the same for all commands: they choose where the workers run."""

from __future__ import annotations

from functools import partial
from inspect import Parameter
from typing import Annotated, Any, get_type_hints

import typer

from downpour.base.options import OptionText, flag, option, options_of
from downpour.cli.common import CommandPart, Values, parameter, refuse_unused
from downpour.cluster.launchers import (
    LAUNCHERS,
    Launching,
    LaunchPlan,
    checked_table,
    kind_of,
    owners,
    planning,
)
from downpour.files.spec_file import read_launch
from downpour.learning.allowlist import VARIABLE

workers = partial(option, value=None, metavar="N")
dry_run = partial(
    flag, text=f"Print what would be submitted or run, and start nothing ({', '.join(planning())})."
)


def refuse_own_data(context: typer.Context, manager: str) -> None:
    """Refuse this machine's folders if a manager elsewhere trains: it has its own folders."""
    if manager:
        accepted = "cannot go with --manager: that manager has its own"
        refuse_unused(context, {"shared", "data_dir"}, accepted)
        accepted = f"is for runs here; start manager and workers with {VARIABLE} instead"
        refuse_unused(context, {"allow"}, accepted)
        accepted = "cannot go with --manager: that manager has workers"
        refuse_unused(context, {"on", *owners()}, accepted)


def _table(values: Values) -> dict[str, Any]:
    """Return the table of a command's FILE; a manager elsewhere has its own workers."""
    file = values.get("file")
    # The command itself reports a missing file, after other mistakes in its options.
    if file is None or values.get("manager") or not file.is_file():
        return {}
    return checked_table(read_launch(file), file, takes_workers="workers" in values)


def _parameters() -> list[Parameter]:
    """Return the options of all plans, then those of launchers under headings that name these."""
    where = OptionText(
        f"The place to run the workers: {LAUNCHERS.described()}.", "|".join(LAUNCHERS), "local"
    )
    made = {"on": parameter("on", str, None, where)}
    for kind in (LaunchPlan, *(kind_of(on).options for on in LAUNCHERS)):
        hints = get_type_hints(kind) if kind else {}
        for name, (declared, text) in options_of(kind).items():
            titles = [kind_of(on).title for on in owners().get(name, ())]
            shown = (
                str(declared.default).removesuffix(".0") if text.default is None else text.default
            )
            seen = OptionText(
                text.help, text.metavar, shown, flag=text.flag, title=" and ".join(titles) or None
            )
            made.setdefault(name, parameter(name, hints[name], None, seen))
    return [*made.values()]


LaunchOptions = Annotated[
    Launching, CommandPart(_parameters(), lambda values: Launching.of(values, _table(values)))
]
"""The parameter of a command that starts workers.

The table `[launch]` of the command's FILE supplies the options that the user leaves out.
"""
