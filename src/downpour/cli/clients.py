"""The commands that speak to a manager: submit, status, watch, list, cancel, results."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from downpour.api import Client
from downpour.cli.options import MANAGER, SHARED, AsCsv, AsJson, Experiment, Manager, Shared
from downpour.cli.printing import err, out, print_result, print_spec
from downpour.cli.spec_options import with_spec
from downpour.errors import FileMissing, Unreachable
from downpour.reports import Result
from downpour.reports.live import experiments_table, status_view
from downpour.reports.progress import ProgressDisplay
from downpour.spec import Spec
from downpour.store import SharedDirectory

AnyExperiment = Annotated[
    str, typer.Argument(metavar="[ID]", help="An experiment; the active one where absent.")
]


@with_spec
def submit(
    spec: Spec,
    manager: Manager = MANAGER,
    *,
    watch: Annotated[bool, typer.Option("--watch", help="Stay until it has ended.")] = False,
) -> None:
    """Hand an experiment to a manager and print its identifier."""
    with Client(manager) as client:
        experiment = client.submit(spec)
        if not watch:
            out.print(experiment, highlight=False)
            return
        print_spec(spec)
        with ProgressDisplay(err) as display:
            result = client.wait(experiment, on_status=display.show)
        print_result(result)


def status(
    experiment: AnyExperiment = "", manager: Manager = MANAGER, *, as_json: AsJson = False
) -> None:
    """Show the workers and the experiment, as they are now."""
    with Client(manager) as client:
        now = client.status(experiment)
    out.print_json(json.dumps(asdict(now))) if as_json else out.print(status_view(now))


def watch(experiment: AnyExperiment = "", manager: Manager = MANAGER) -> None:
    """Show the workers and the experiment, and keep the picture current until it has ended."""
    from rich.live import Live

    with Client(manager) as client, Live(console=out, refresh_per_second=4) as live:
        for now in client.watch(experiment):
            live.update(status_view(now))


def list_experiments(manager: Manager = MANAGER, *, as_json: AsJson = False) -> None:
    """List the manager's experiments, oldest first."""
    with Client(manager) as client:
        found = client.experiments()
    if as_json:
        out.print_json(json.dumps([asdict(one) for one in found]))
    else:
        out.print(experiments_table(found))


def cancel(experiment: Experiment, manager: Manager = MANAGER) -> None:
    """Stop an experiment; what it has written so far stays."""
    with Client(manager) as client:
        client.cancel(experiment)


def results(
    experiment: Experiment,
    shared: Shared = SHARED,
    manager: Manager = MANAGER,
    *,
    as_json: AsJson = False,
    as_csv: AsCsv = False,
) -> None:
    """Print an experiment's results, from the shared directory or, where it is not, the manager."""
    print_result(_find(experiment, shared, manager), as_json=as_json, as_csv=as_csv)


def _find(experiment: str, shared: Path, manager: str) -> Result:
    folder = SharedDirectory(shared).experiment_path(experiment)
    if folder.is_dir():
        return Result.read(folder)
    try:
        with Client(manager) as client:
            return client.results(experiment)
    except Unreachable as error:
        raise FileMissing(f"{folder} (and {error})") from None
