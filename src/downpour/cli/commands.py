"""The commands by name; each is a function in a module of its own."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Annotated, Any

import typer
from typer.main import get_command

from downpour.cli import (
    certs,
    clients,
    cluster,
    compare_policies,
    doctor,
    grid,
    init,
    ping,
    predictor,
    replay,
    report,
    run,
    simulate,
    standing,
    trained,
    tune,
)
from downpour.cli.help import Command, Group
from downpour.version import VERSION

app = typer.Typer(
    name="downpour",
    help="Train on the machines you have: uneven workers, one shared folder, no lost progress.",
    cls=Group,
    context_settings={"help_option_names": ["-h", "--help"]},
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


def _print_version(wanted: bool) -> None:  # noqa: FBT001 - an option's callback
    if wanted:
        typer.echo(f"downpour {VERSION}")
        raise typer.Exit


@app.callback()
def _downpour(
    *,
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
) -> None:
    """Take what stands before a command."""


app.command("init", cls=Command)(init.init)
app.command("run", cls=Command)(run.run)
app.command("grid", cls=Command)(grid.grid)
app.command("experiment", cls=Command, hidden=True)(grid.grid)  # its name before
app.command("report", cls=Command)(report.report)
app.command("tune", cls=Command)(tune.tune)
app.command("manager", cls=Command)(cluster.manager)
app.command("worker", cls=Command)(cluster.worker)
app.command("up", cls=Command)(standing.up)
app.command("ps", cls=Command)(standing.ps)
app.command("down", cls=Command)(standing.down)
app.command("submit", cls=Command)(clients.submit)
app.command("status", cls=Command)(clients.status)
app.command("watch", cls=Command)(clients.watch)
app.command("list", cls=Command)(clients.list_experiments)
app.command("cancel", cls=Command)(clients.cancel)
app.command("results", cls=Command)(clients.results)
app.command("evaluate", cls=Command)(trained.evaluate)
app.command("predict", cls=Command)(trained.predict)
app.command("export", cls=Command)(trained.export)
app.command("replay", cls=Command)(replay.replay)
app.command("ping", cls=Command)(ping.ping)
app.command("certs", cls=Command)(certs.certs)
app.command("doctor", cls=Command)(doctor.doctor)
app.command("simulate", cls=Command)(simulate.simulate)
app.command("compare-policies", cls=Command)(compare_policies.compare_policies)
app.add_typer(predictor.app, name="predictor")


@cache
def command_line() -> Callable[..., Any]:
    """Build what parses words and runs a command; once a process, for it takes 60 ms."""
    return get_command(app)
