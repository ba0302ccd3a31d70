"""`downpour trace`: an experiment as a timeline that Perfetto shows."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from downpour.cli.asking import find
from downpour.cli.options import RESULTS, Experiment, Manager, SharedIfSeen, path_option
from downpour.cli.printing import say
from downpour.cli.trust_options import with_credentials
from downpour.host.credentials import Credentials

_STANDARD_OUTPUT = Path("-")


@with_credentials
def trace(
    experiment: Experiment,
    to: Annotated[
        Path | None,
        typer.Option(
            "--to",
            metavar="FILE",
            parser=path_option("to"),
            help="The file to write; - is standard output. It may replace an earlier trace, "
            "but no other file.",
            show_default="./results/ID/trace.json",
        ),
    ] = None,
    shared: SharedIfSeen = None,
    manager: Manager = "",
    *,
    credentials: Credentials,
) -> None:
    """Write a timeline of an experiment, even while it runs.

    Open the file at ui.perfetto.dev or in chrome://tracing; both read it on your machine. The
    timeline shows which shards each worker trained, when and why, hand-overs, failures, rounds,
    decisions, loss and metrics. The command finds the experiment as `downpour results` does, and
    prints the file's path.
    """
    from downpour.experiments.tracing.writing import TRACE_NAME, trace_lines, write_trace

    found = find(experiment, shared, manager, credentials)
    if to == _STANDARD_OUTPUT:
        sys.stdout.writelines(trace_lines(found.record))
        return
    file = to or RESULTS / found.experiment / TRACE_NAME
    write_trace(found.record, file)
    say(str(file))
