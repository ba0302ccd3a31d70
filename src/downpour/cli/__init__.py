"""The command line: parse, build a spec, call one function, print.

A user's mistake costs one line on standard error and exit status 2. Ctrl-C ends with status 130,
everything that was started having been stopped.
"""

from __future__ import annotations

import sys

import typer
from typer.exceptions import TyperException

from downpour.cli import clients, cluster, run
from downpour.errors import DownpourError

app = typer.Typer(
    name="downpour",
    help="Train on the machines you have: uneven workers, one shared folder, no lost progress.",
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
app.command("run")(run.run)
app.command("manager")(cluster.manager)
app.command("worker")(cluster.worker)
app.command("submit")(clients.submit)
app.command("status")(clients.status)
app.command("watch")(clients.watch)
app.command("list")(clients.list_experiments)
app.command("cancel")(clients.cancel)
app.command("results")(clients.results)


def main() -> None:
    """Run the command line and exit with its status."""
    sys.exit(_run())


def _run() -> int:
    try:
        return int(app(standalone_mode=False) or 0)
    except DownpourError as error:
        return _complain(str(error), error.exit_status)
    except TyperException as error:
        return _complain(error.format_message(), error.exit_code)
    except (KeyboardInterrupt, typer.Abort):
        return _complain("stopped", 130)
    except BrokenPipeError:
        return 1


def _complain(message: str, status: int) -> int:
    print(f"downpour: {message}", file=sys.stderr)  # noqa: T201 - the edge of the program
    return status
