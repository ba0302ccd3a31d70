"""`downpour experiment` and `downpour report`: a grid of runs, and what came of it."""

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
from downpour.errors import FileCorrupt, FileMissing, SpecError

if TYPE_CHECKING:
    from downpour.reports.study import Study
    from downpour.studies.grid_folder import Folder

_FAILED = 1


@with_credentials
def experiment(
    context: typer.Context,
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE", parser=path_option("FILE"), help="A TOML file that says what to run."
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
    """Run a grid of experiments, or what is missing of one.

    FILE holds a name, fields of the spec, `workers`, and `trials`: how often each is run, with
    seed, seed + 1 and so on. A list is an axis of the grid. Where a value is itself a list (betas)
    a list of lists is the axis; model_options and dataset_options take a list of tables, and a list
    inside one is a value. Each `[[experiment]]` is a grid of its own, with a name, that inherits
    what stands above it. Where `shards` is absent there are as many as workers.

    Every setting is tried once before any is tried twice. What has finished is never run again: the
    command may be stopped at any time and given again, also when the file has grown by trials or
    values. While it runs elsewhere, it says how far it is. `downpour report DIR` shows what came of
    it.
    """
    refuse_both(detach=detach, status=status)
    refuse_own_data(context, manager)
    from downpour.studies.grid import Grid
    from downpour.studies.grid_folder import Folder
    from downpour.studies.lock import holder

    grid = Grid.from_file(file)
    folder = Folder((out_dir or RESULTS / grid.name).absolute(), grid)
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
        means.detach("experiment", folder)
    else:
        _run(folder, means)
        _tell(folder, as_json=as_json)
        if any(not summary.is_finished for summary in folder.summaries().values()):
            raise typer.Exit(_FAILED)


def report(
    folder: Annotated[
        Path,
        typer.Argument(
            metavar="FOLDER",
            parser=path_option("FOLDER"),
            help="A folder of `downpour experiment`, or of one experiment.",
        ),
    ],
    out_dir: Annotated[
        Path | None,
        typer.Option(
            "--out",
            metavar="DIR",
            parser=path_option("out"),
            help="Where it is written.",
            show_default="FOLDER/report, or ./results/ID of one experiment",
        ),
    ] = None,
    tensorboard: TensorBoard = None,
) -> None:
    """Write tables, figures and a page about what was run.

    Means over trials come with 95 % intervals by Student's t. Tables are Markdown, CSV and JSON,
    figures PNG and SVG; index.html is one file that needs no network. An earlier report in DIR is
    replaced, nothing else.
    """
    from rich.progress import Progress

    from downpour.reports.report import write_report
    from downpour.reports.tables import study_table

    study, usual = _study(folder)
    if tensorboard is not None:
        _write_events(folder, tensorboard)
    with Progress(console=err(), disable=not err().is_terminal, transient=True) as bars:
        bar = bars.add_task("figures", total=None)
        page = write_report(
            study,
            out_dir or usual,
            lambda done, total: bars.update(bar, completed=done, total=total),
        )
    for group in study.groups:
        out().print(study_table(group))
    out().print(str(page), highlight=False, markup=False, soft_wrap=True)


def _write_events(folder: Path, tensorboard: Path) -> None:
    """Write the event files of all that has ended in a grid, or of one experiment."""
    from downpour.reports.event_files import write_events
    from downpour.runtime.record import RECORD_NAME, read_record
    from downpour.studies.grid_folder import GRID_NAME, Folder

    if not (folder / GRID_NAME).exists():
        write_events(read_record(folder / RECORD_NAME), tensorboard)
        return
    for record in Folder.read(folder).records():
        write_events(read_record(record), tensorboard, record.parent.name)


def _run(folder: Folder, means: Means) -> None:
    from downpour.studies.grid_backends import Embedded, Remote
    from downpour.studies.grid_display import GridDisplay
    from downpour.studies.grid_runner import run_missing

    on_kept = means.event_writer(folder.records())
    finished = {id_: s for id_, s in folder.summaries().items() if s.is_finished}
    with (
        means.client() as client,
        GridDisplay(err(), note, folder.grid.cells, finished) as display,
    ):
        trainer = (
            Remote(client, folder.request) if client else Embedded(means.shared, means.data_dir)
        )
        run_missing(folder, trainer, display, on_kept)


def _tell(folder: Folder, *, as_json: bool) -> None:
    """Say how far a grid is."""
    from downpour.reports.tables import study_table
    from downpour.studies.grid_status import standing_of

    standing = standing_of(folder)
    if as_json:
        print_json(standing.to_dict())
        return
    for group in folder.study().groups:
        out().print(study_table(group))
    out().print(str(standing), highlight=False, markup=False, soft_wrap=True)


def _study(folder: Path) -> tuple[Study, Path]:
    """Read what a folder holds, and say where a report on it usually goes."""
    from downpour.reports.study import read_one
    from downpour.studies.grid_folder import GRID_NAME, Folder
    from downpour.studies.search_folder import FIGURE_STEM, TUNE_NAME

    if (folder / GRID_NAME).exists():
        grid = Folder.read(folder)
        grid.check()
        return grid.study(), folder / "report"
    if (folder / TUNE_NAME).exists():
        accepted = f"is of `downpour tune`; {FIGURE_STEM}.svg is the figure of a search"
        raise SpecError("FOLDER", str(folder), accepted)
    try:
        study = read_one(folder)
    except FileMissing:
        accepted = "must be a folder of `downpour experiment`, or of one experiment"
        raise SpecError("FOLDER", str(folder), accepted) from None
    except FileCorrupt as error:
        raise SpecError("FOLDER", str(folder), str(error)) from None
    return study, RESULTS / study.groups[0].runs[0].result.experiment
