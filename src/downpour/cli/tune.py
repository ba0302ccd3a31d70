"""`downpour tune`: search for settings that learn better."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from downpour.cli.contradictions import refuse_both, refuse_own_data
from downpour.cli.means import Means
from downpour.cli.options import (
    RESULTS,
    SHARED,
    AsJson,
    DataDir,
    Detach,
    ManagerElsewhere,
    OnlyStatus,
    OutDir,
    Shared,
    TensorBoard,
    path_option,
)
from downpour.cli.printing import err, note, out, print_json
from downpour.cli.trust_options import with_credentials
from downpour.credentials import Credentials

if TYPE_CHECKING:
    from downpour.studies.search_folder import Folder

_FAILED = 1


@with_credentials
def tune(
    context: typer.Context,
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE", parser=path_option("FILE"), help="A TOML file that says what to search."
        ),
    ],
    out_dir: OutDir = None,
    shared: Shared = SHARED,
    data_dir: DataDir = None,
    manager: ManagerElsewhere = "",
    tensorboard: TensorBoard = None,
    *,
    detach: Detach = False,
    status: OnlyStatus = False,
    as_json: AsJson = False,
    credentials: Credentials,
) -> None:
    """Search for settings of high accuracy, in trials.

    FILE holds a name, fields of the spec, `workers`, and a table `[search]`: for each field that is
    searched a list of values, or a range as { low = 0.001, high = 0.3, log = true }; options as
    "model_options.dropout"; and `trials`, `seed` and `pruner` (median, halving or none). Where
    `shards` is absent there are as many as workers.

    Each trial is an experiment. Optuna chooses its values by what the trials before it came to, and
    one that falls behind is cancelled. What has ended is never run again, but for what failed by
    bad luck: the command may be stopped at any time and given again, also with more trials. While
    it runs elsewhere, it says how far it is. DIR then has each trial, the spec of the best as
    best.toml, and a figure as search.png and search.svg.

    Accuracy is that on the test examples, so the best trial's is too good an estimate of how it
    does on others.
    """
    refuse_both(detach=detach, status=status)
    refuse_own_data(context, manager)
    from downpour.studies.lock import holder

    folder = _folder(file, out_dir)
    means = Means(
        shared=shared,
        data_dir=data_dir,
        manager=manager,
        tensorboard=tensorboard,
        credentials=credentials,
    )
    folder.check()
    if status or holder(folder.path) or (detach and not folder.missing()):
        _tell(folder, as_json=as_json)
    elif detach:
        means.detach("tune", folder)
    else:
        _run(folder, means)
        _tell(folder, as_json=as_json)
        tuned = folder.tuned()
        if tuned.left or tuned.best is None:
            raise typer.Exit(_FAILED)


def _folder(file: Path, out_dir: Path | None) -> Folder:
    from downpour.studies.search import Search
    from downpour.studies.search_folder import Folder

    search = Search.from_file(file)
    return Folder((out_dir or RESULTS / search.name).absolute(), search)


def _run(folder: Folder, means: Means) -> None:
    from downpour.studies.search_backends import Embedded, Remote
    from downpour.studies.search_display import SearchDisplay
    from downpour.studies.search_runner import run_search

    on_kept = means.event_writer(folder.records())
    with (
        means.client() as client,
        SearchDisplay(err(), note, folder.tuned()) as display,
    ):
        trainer = (
            Remote(client, folder.request) if client else Embedded(means.shared, means.data_dir)
        )
        run_search(folder, trainer, display, on_kept)
    folder.draw()


def _tell(folder: Folder, *, as_json: bool) -> None:
    """Show the trials, how far the search is, and the files of what came of it."""
    from downpour.reports.tables import tuned_table
    from downpour.studies.search_status import standing_of

    standing, files = standing_of(folder), folder.files()
    if as_json:
        print_json({**standing.to_dict(), "files": [str(file) for file in files]})
        return
    if standing.tuned.trials:
        out().print(tuned_table(standing.tuned))
    out().print(str(standing), highlight=False, markup=False, soft_wrap=True)
    for file in files:
        out().print(str(file), highlight=False, markup=False, soft_wrap=True)
