"""`downpour grid`: a grid of runs."""

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

    from downpour.experiments.studies import Grid, StudyFolder


@with_launcher
@with_credentials
def grid(
    context: typer.Context,
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE", parser=path_option("FILE"), help="A TOML file with the grid."
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
    """Run a grid of experiments, or its missing runs.

    FILE holds a name, fields of the spec, `workers`, and `trials`: the number of runs of each
    setting, with seed, seed + 1 and so on. A list is an axis of the grid. If a value is itself a
    list (betas), the axis is a list of lists. For task_options, model_options and dataset_options
    the axis is a list of tables, and a list inside a table is a value. Each `[[experiment]]` is a
    named grid that inherits the fields above it. Without `shards`, each worker gets one.

    The command runs every setting once before it runs any twice, and skips runs that have finished.
    You can stop it at any time and restart it, even after you have added repetitions or values to
    the file. While another process runs the grid, the command shows its progress. `downpour report
    DIR` writes tables and figures of the results.
    """
    refuse_both(detach=detach, status=status)
    refuse_own_data(context, manager)
    allow_code(allow, file)
    require("downpour grid", "report")
    from downpour.experiments.studies import Grid

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
    command = StudyCommand("grid", _tables)
    command.run(Grid.from_file(file), options, detach=detach, status=status, as_json=as_json)


def _tables(folder: StudyFolder[Grid]) -> list[RenderableType]:
    """Return a table of the ended runs for each subgrid."""
    from downpour.experiments.studies import grid_results
    from downpour.experiments.tables.study_tables import study_table

    return [study_table(subgrid) for subgrid in grid_results(folder).subgrids]
