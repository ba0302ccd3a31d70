"""`downpour report`: writes tables, figures and a page of the results."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from downpour.base.errors import FileCorrupt, FileMissing, SpecError
from downpour.cli.options import RESULTS, TensorBoard, path_option
from downpour.cli.printing import err, out
from downpour.host.extras import require

if TYPE_CHECKING:
    from downpour.experiments.reading.study_result import StudyResult


def report(
    folder: Annotated[
        Path,
        typer.Argument(
            metavar="FOLDER",
            parser=path_option("FOLDER"),
            help="A folder of `downpour grid`, or of one experiment.",
        ),
    ],
    out_dir: Annotated[
        Path | None,
        typer.Option(
            "--out",
            metavar="DIR",
            parser=path_option("out"),
            help="The folder to write the report to.",
            show_default="FOLDER/report, or ./results/ID for one experiment",
        ),
    ] = None,
    tensorboard: TensorBoard = None,
) -> None:
    """Write tables, figures and a page of the results.

    Means over repetitions come with 95 % intervals by Student's t. Tables are Markdown, CSV and
    JSON, figures are PNG and SVG, and index.html is one file that needs no network. The command
    replaces an earlier report in DIR and leaves other files alone.
    """
    require("downpour report", "report")
    from rich.progress import Progress

    from downpour.experiments.pages.report import write_report
    from downpour.experiments.tables.study_tables import study_table

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
    for subgrid in study.subgrids:
        out().print(study_table(subgrid))
    out().print(str(page), highlight=False, markup=False, soft_wrap=True)


def _write_events(folder: Path, tensorboard: Path) -> None:
    """Write the event files of all ended runs of a grid, or of one experiment."""
    from downpour.experiments.event_files import write_events
    from downpour.experiments.studies import Grid, read_folder
    from downpour.files.records.record import read_record
    from downpour.files.store.layout import RECORD_NAME

    if not (folder / Grid.file_name).exists():
        write_events(read_record(folder / RECORD_NAME), tensorboard)
        return
    for record in read_folder(folder, Grid).records():
        write_events(read_record(record), tensorboard, record.parent.name)


def _study(folder: Path) -> tuple[StudyResult, Path]:
    """Read the results in a folder; return them with the default folder for their report."""
    from downpour.experiments.reading.study_result import read_one
    from downpour.experiments.studies import Grid, Search, grid_results, read_folder
    from downpour.experiments.studies.results import FIGURE_STEM

    if (folder / Grid.file_name).exists():
        grid = read_folder(folder, Grid)
        grid.check()
        return grid_results(grid), folder / "report"
    if (folder / Search.file_name).exists():
        accepted = f"is a folder of `downpour tune`; its figure is {FIGURE_STEM}.svg"
        raise SpecError("FOLDER", str(folder), accepted)
    try:
        study = read_one(folder)
    except FileMissing:
        accepted = "must be a folder of `downpour grid`, or of one experiment"
        raise SpecError("FOLDER", str(folder), accepted) from None
    except FileCorrupt as error:
        raise SpecError("FOLDER", str(folder), str(error)) from None
    return study, RESULTS / study.subgrids[0].runs[0].result.experiment
