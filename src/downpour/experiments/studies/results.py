"""Reads a study's folder: summaries, progress, results."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from downpour.experiments.studies.grid import Grid, Subgrid
from downpour.experiments.studies.run_folder import check_run, refusal, replace_file
from downpour.experiments.studies.runner import plan_of
from downpour.experiments.studies.search import Search
from downpour.experiments.studies.search_plan import SearchPlan
from downpour.experiments.studies.study import Study, StudyProgress, about
from downpour.experiments.studies.study_folder import StudyFolder, holder
from downpour.files.store.publish import explain
from downpour.record.study_result import RunResult, StudyResult, SubgridResult

FIGURE_STEM = "search"
_FIGURES = f"{FIGURE_STEM}.png", f"{FIGURE_STEM}.svg"


def grid_results(folder: StudyFolder[Grid]) -> StudyResult:
    """Read all ended runs of a grid, each at its place."""
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
    """Draw the runs of a search so far, if any has a value."""
    from downpour.show.figures.result_figure import search_figure
    from downpour.show.figures.style import to_png, to_svg

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


@dataclass(frozen=True, slots=True)
class StudyStatus:
    """A study's progress, and the process that runs the study now, in words, if any."""

    progress: StudyProgress
    running: str | None

    def to_dict(self) -> dict[str, Any]:
        """Return the status as JSON values."""
        now = {"running": self.running, "seconds_left": self.progress.seconds_left}
        return {**self.progress.fields, **now}

    def __str__(self) -> str:
        if not self.progress.left:
            return self.progress.text
        runs_it = f"{self.running} runs it" if self.running else "no process runs it now"
        return f"{self.progress.text}, {about(self.progress.seconds_left)} left, {runs_it}"


def status_of(folder: StudyFolder[Study]) -> StudyStatus:
    """Read how far a study is."""
    return StudyStatus(plan_of(folder.study, folder.ended()).progress, holder(folder.path))
