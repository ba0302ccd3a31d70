"""The command line: parse, build a spec, call one function, print.

A user's mistake costs one line on standard error and exit status 2. Ctrl-C ends with status 130,
everything that was started having been stopped. What a command needs is imported when it runs, so
that help and mistakes are answered at once.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

import typer
from typer.exceptions import TyperException

from downpour.cli import (
    certs,
    clients,
    cluster,
    compare_policies,
    doctor,
    experiment,
    ping,
    predictor,
    run,
    simulate,
    tune,
)
from downpour.cli.help import Command
from downpour.errors import DownpourError

app = typer.Typer(
    name="downpour",
    help="Train on the machines you have: uneven workers, one shared folder, no lost progress.",
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
app.command("run", cls=Command)(run.run)
app.command("experiment", cls=Command)(experiment.experiment)
app.command("report", cls=Command)(experiment.report)
app.command("tune", cls=Command)(tune.tune)
app.command("manager", cls=Command)(cluster.manager)
app.command("worker", cls=Command)(cluster.worker)
app.command("submit", cls=Command)(clients.submit)
app.command("status", cls=Command)(clients.status)
app.command("watch", cls=Command)(clients.watch)
app.command("list", cls=Command)(clients.list_experiments)
app.command("cancel", cls=Command)(clients.cancel)
app.command("results", cls=Command)(clients.results)
app.command("ping", cls=Command)(ping.ping)
app.command("certs", cls=Command)(certs.certs)
app.command("doctor", cls=Command)(doctor.doctor)
app.command("simulate", cls=Command)(simulate.simulate)
app.command("compare-policies", cls=Command)(compare_policies.compare_policies)
app.add_typer(predictor.app, name="predictor")

_INTERRUPTED = 130


def main() -> None:
    """Run the command line and exit with its status."""
    sys.exit(run_command(sys.argv[1:]))


def run_command(words: Sequence[str]) -> int:
    """Run one command and return its exit status; whatever goes wrong is told in one line."""
    try:
        status = app(list(words) or ["--help"], prog_name="downpour", standalone_mode=False)
    except DownpourError as error:
        return _complain(str(error), error.exit_status)
    except TyperException as error:
        return _complain(error.format_message(), error.exit_code)
    except (KeyboardInterrupt, typer.Abort):
        status = _INTERRUPTED
    return _complain("stopped", status) if status == _INTERRUPTED else int(status or 0)


def _complain(message: str, status: int) -> int:
    """Tell it in one line; what a peer has put into it can do nothing to the terminal."""
    line = "".join(c if c.isprintable() else "\ufffd" for c in " ".join(message.split()))
    print(f"downpour: {line}", file=sys.stderr)  # noqa: T201 - the edge of the program
    return status
