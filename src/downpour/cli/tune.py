"""`downpour tune`: search for settings that learn better."""

from __future__ import annotations

import signal
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from downpour.cli.options import SHARED, AsJson, DataDir, Shared
from downpour.cli.printing import err, note, out, print_json
from downpour.cli.trust_options import with_credentials
from downpour.credentials import Credentials

if TYPE_CHECKING:
    from downpour.tuning import Folder

_FAILED = 1
_RESULTS = Path("results")


@with_credentials
def tune(
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="A TOML file that says what to search.")
    ],
    out_dir: Annotated[
        Path | None,
        typer.Option(
            "--out", metavar="DIR", help="Where results go.", show_default="./results/NAME"
        ),
    ] = None,
    shared: Shared = SHARED,
    data_dir: DataDir = None,
    manager: Annotated[
        str,
        typer.Option(
            "--manager",
            metavar="HOST:PORT",
            help="Let this manager train, with the workers that it has.",
            show_default="processes of its own, on this machine",
        ),
    ] = "",
    *,
    status: Annotated[
        bool, typer.Option("--status", help="Only say how far it is; starts nothing.")
    ] = False,
    as_json: AsJson = False,
    credentials: Credentials,
) -> None:
    """Search for settings of high accuracy, in trials.

    FILE holds a name, fields of the spec, `workers`, and a table `[search]`: for each field that is
    searched a list of values, or a range as { low = 0.001, high = 0.3, log = true }; options as
    "model_options.dropout"; and `trials`, `seed` and `pruner` (median, halving or none). Where
    `shards` is absent there are as many as workers.

    Each trial is an experiment. Optuna chooses its values by what the trials before it came to, and
    one that falls behind is cancelled. What has ended is never run again: the command may be
    stopped at any time and given again, also with more trials. DIR then has each trial, the spec of
    the best as best.toml, and a figure as search.png and search.svg.

    Accuracy is that on the test examples, so the best trial's is too good an estimate of how it
    does on others.
    """
    from downpour.experiments.hold import holder
    from downpour.tuning import Folder, read_search

    search = read_search(file)
    folder = Folder((out_dir or _RESULTS / search.name).absolute(), search)
    folder.check()
    if running := holder(folder.path):
        note(f"{running} runs it")
    elif not status:
        _run(folder, shared, data_dir, manager, credentials)
    figure = folder.draw() if not (status or running) else []
    _tell(folder, figure, as_json=as_json)
    if not (status or running) and folder.tuned().best is None:
        raise typer.Exit(_FAILED)


def _run(
    folder: Folder, shared: Path, data_dir: Path | None, manager: str, credentials: Credentials
) -> None:
    from downpour.api import Client
    from downpour.tuning import Embedded, Remote, run_search
    from downpour.tuning.progress import SearchDisplay

    signal.signal(signal.SIGTERM, signal.default_int_handler)  # `kill` stops it as Ctrl-C does
    tuned = folder.tuned()
    with (
        Client(manager, credentials=credentials) if manager else nullcontext() as client,
        SearchDisplay(err(), note, tuned) as display,
    ):
        run_search(folder, Remote(client) if client else Embedded(shared, data_dir), display)


def _tell(folder: Folder, figure: list[Path], *, as_json: bool) -> None:
    """Show the trials, the best of them, and where its spec and the figure are."""
    from downpour.reports.tables import tuned_table

    tuned = folder.tuned()
    files = [folder.best] * (tuned.best is not None) + figure
    if as_json:
        print_json({**tuned.to_dict(), "files": [str(file) for file in files]})
        return
    if tuned.trials:
        out().print(tuned_table(tuned))
    out().print(str(tuned), highlight=False, markup=False, soft_wrap=True)
    for file in files:
        out().print(str(file), highlight=False, markup=False, soft_wrap=True)
