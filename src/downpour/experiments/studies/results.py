"""Reads a study's folder for reports: a grid's runs by place, and the figure of a search."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from downpour.experiments.reading.study_result import RunResult, StudyResult, SubgridResult
from downpour.experiments.studies.grid import Grid, Subgrid
from downpour.experiments.studies.run_folder import check_run, refusal, replace_file
from downpour.experiments.studies.search import Search
from downpour.experiments.studies.search_plan import SearchPlan
from downpour.experiments.studies.study_folder import StudyFolder
from downpour.files.store.os_errors import explain

FIGURE_STEM = "search"
_FIGURES = f"{FIGURE_STEM}.png", f"{FIGURE_STEM}.svg"


def grid_results(folder: StudyFolder[Grid]) -> StudyResult:
    """Read all ended runs of a grid, each at its place.

    Raises:
        SpecError: a run's files are incomplete or were altered.
    """
    runs = {
        ended.run.name: check_run(folder.record(ended.run.name).parent, ended.run.workers)
        for ended in folder.ended()
    }
    grid = folder.study
    return StudyResult(
        name=grid.name, subgrids=tuple(_results(grid, subgrid, runs) for subgrid in grid.subgrids)
    )


def _results(grid: Grid, subgrid: Subgrid, runs: dict[str, RunResult]) -> SubgridResult:
    ended = [
        replace(runs[place.run.name], values=place.values, repetition=place.repetition)
        for place in grid.places
        if place.subgrid == subgrid.name and place.run.name in runs
    ]
    return SubgridResult(
        name=subgrid.name,
        axes=subgrid.axes,
        repetitions=grid.repetitions,
        settings=tuple(subgrid.settings()),
        runs=tuple(run for run in ended if run.result.state == "finished"),
        failed=tuple(run for run in ended if run.result.state != "finished"),
    )


def draw_search(folder: StudyFolder[Search]) -> None:
    """Draw the runs of a search so far, if any has a value.

    Raises:
        SpecError: the figure cannot be written.
    """
    from downpour.experiments.figures.export import to_png, to_svg
    from downpour.experiments.figures.search_figure import search_figure

    result = SearchPlan(folder.study, folder.ended()).result
    if all(run.value is None for run in result.runs):
        return
    figure = search_figure(result)
    contents = to_png(figure), to_svg(figure, FIGURE_STEM).encode()
    try:
        for name, content in zip(_FIGURES, contents, strict=True):
            replace_file(folder.path / name, content)
    except OSError as error:
        raise refusal(folder.path, explain(error)) from None


def search_files(folder: StudyFolder[Search]) -> list[Path]:
    """Return the paths of the best run's spec and of the figure, if they exist."""
    files = folder.best, *(folder.path / name for name in _FIGURES)
    return [file for file in files if file.exists()]
