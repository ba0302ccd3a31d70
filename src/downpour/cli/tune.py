"""`downpour tune`: searches for settings that learn better."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from downpour.cli.launch_options import Launching, with_launcher
from downpour.cli.option_conflicts import refuse_both, refuse_own_data
from downpour.cli.options import (
    SHARED,
    Allow,
    AsJson,
    DataDir,
    Detach,
    ManagerElsewhere,
    OnEvent,
    OnlyStatus,
    OutDir,
    Shared,
    TensorBoard,
    allow_code,
    path_option,
)
from downpour.cli.study_command import StudyCommand, StudyOptions
from downpour.cli.trust_options import with_credentials
from downpour.host.credentials import Credentials
from downpour.host.event_command import checked_command
from downpour.host.extras import require

if TYPE_CHECKING:
    from rich.console import RenderableType

    from downpour.experiments.studies import Search, StudyFolder


@with_launcher
@with_credentials
def tune(
    context: typer.Context,
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE", parser=path_option("FILE"), help="A TOML file with the search."
        ),
    ],
    out_dir: OutDir = None,
    shared: Shared = SHARED,
    data_dir: DataDir = None,
    manager: ManagerElsewhere = "",
    tensorboard: TensorBoard = None,
    on_event: OnEvent = "",
    *,
    allow: Allow = None,
    detach: Detach = False,
    status: OnlyStatus = False,
    as_json: AsJson = False,
    credentials: Credentials,
    launching: Launching,
) -> None:
    """Search for settings of high accuracy.

    FILE holds a name, fields of the spec, `workers`, and a table `[search]`. For each field to
    search, the table has a list of values, or a range as { low = 0.001, high = 0.3, log = true };
    an option is written "model_options.dropout". It may also have `trials` (the number of runs),
    `seed`, `pruner` (median, halving or none) and `objective` (accuracy, loss or a task's metric).
    Without `shards`, each worker gets one.

    Each run is an experiment. Optuna chooses its values from the results of the runs before it, and
    the command cancels runs that fall behind. You can stop the command at any time and restart it,
    even with more runs. It then skips ended runs, but repeats a run that failed for a reason other
    than its values, such as a lost worker. While another process runs the search, the command shows
    its progress. DIR holds each run, the spec of the best one as best.toml, and a figure as
    search.png and search.svg.

    The search compares runs by their results on the test examples, so the best run's result is too
    optimistic for other examples.
    """
    refuse_both(detach=detach, status=status)
    refuse_own_data(context, manager)
    allow_code(allow, file)
    if not status:
        require("downpour tune", "tune")
    from downpour.experiments.studies import Search
    from downpour.experiments.studies.results import draw_search, search_files

    options = StudyOptions(
        out_dir=out_dir,
        shared=shared,
        data_dir=data_dir,
        manager=manager,
        tensorboard=tensorboard,
        credentials=credentials,
        launching=launching,
        on_event=checked_command(on_event) if on_event else "",
    )
    command = StudyCommand("tune", _tables, draw_search, search_files)
    command.run(Search.from_file(file), options, detach=detach, status=status, as_json=as_json)


def _tables(folder: StudyFolder[Search]) -> list[RenderableType]:
    """Return a table of the runs that have ended."""
    from downpour.experiments.studies.search_plan import SearchPlan
    from downpour.experiments.tables.study_tables import search_table

    result = SearchPlan(folder.study, folder.ended()).result
    return [search_table(result)] if result.runs else []
