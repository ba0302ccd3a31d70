"""The ECE751 report's figures and tables, of a grid of `ece751.toml` that was run here.

    downpour grid examples/papers/ece751.toml
    python examples/papers/ece751.py results/ece751

It prints tables and draws eight figures into `results/ece751/published/`, as far as the grid has
come, with what was published beside ours. The report prints the test accuracy after the first and
the last of five epochs, and two training times. The code published with it computed the mean of the
workers' parameters and then went on from the first worker's, so what it printed is to be compared
with `first`, not only with `average`. The files of results in its repository hold other numbers.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from downpour.base.errors import DownpourError
from downpour.experiments.studies import Grid, grid_results, read_folder
from downpour.record.result_parts import Estimate, Measure
from downpour.record.study_result import RunResult, StudyResult, SubgridResult
from downpour.show.figures.curves import classes_figure, learning_figure, outcome_figure
from downpour.show.figures.style import LIGHT, series, styled, to_png, to_svg
from downpour.show.tables.report_tables import Cell, Column, Table

EPOCHS = (1, 5)
"""After which the report prints an accuracy."""


@dataclass(frozen=True, kw_only=True)
class Published:
    """One setting of the report, averaged as it says.

    Accuracies in per cent after the first and the last epoch, as printed, and as its repository's
    files of results have them, where that is known; seconds of training as printed.
    """

    workers: int
    split: str = "random"
    printed: tuple[float, float]
    in_files: tuple[float, float] | None = None
    seconds: float | None = None

    @property
    def title(self) -> str:
        """Name the setting."""
        return "1 worker" if self.workers == 1 else f"{self.workers} workers, {self.split}"

    @property
    def places(self) -> dict[str, tuple[str, tuple[Any, ...]]]:
        """Our settings to compare with, by aggregation: the subgrid, and the place on its axes."""
        if self.workers == 1:
            return {"average": ("workers", (1,))}
        return {name: ("splits", (self.split, name)) for name in ("average", "first")}


PUBLISHED = (
    Published(workers=1, printed=(95.41, 98.64), seconds=282.17),
    Published(workers=10, printed=(85.37, 92.65), in_files=(87.6, 93.1), seconds=396.64),
    Published(workers=10, split="equal", printed=(87.58, 93.51), in_files=(85.6, 92.6)),
    Published(workers=10, split="class", printed=(9.80, 9.80)),
)
PRINTED: dict[str, Any] = {
    "color": LIGHT["ink"],
    "marker": "x",
    "markersize": 7,
    "linestyle": "none",
    "clip_on": False,
}


def subgrid_of(study: StudyResult, name: str) -> SubgridResult:
    """Return one of the two experiments."""
    return next(subgrid for subgrid in study.subgrids if subgrid.name == name)


def runs_of(study: StudyResult, place: tuple[str, tuple[Any, ...]]) -> list[RunResult]:
    """Return our runs of a setting."""
    return subgrid_of(study, place[0]).at(place[1])


def accuracy(runs: Sequence[RunResult], epoch: int) -> Estimate | None:
    """Estimate the accuracy in per cent after an epoch, counted from 1."""
    rounds = [run.result.rounds[epoch - 1] for run in runs if len(run.result.rounds) >= epoch]
    return Estimate.of(None if r.accuracy is None else 100 * r.accuracy for r in rounds)


def accuracies(study: StudyResult) -> Table:
    """Lay the published accuracies and ours side by side."""
    rows: list[tuple[Cell, ...]] = []
    for one in PUBLISHED:
        for place, epoch in enumerate(EPOCHS):
            ours = (one.places.get(name) for name in ("average", "first"))
            found = (accuracy(runs_of(study, where), epoch) if where else None for where in ours)
            in_files = one.in_files and one.in_files[place]
            rows.append((one.title, epoch, one.printed[place], in_files, *found))
    columns = (
        Column("setting", "setting"),
        Column("epoch", "epoch", 0),
        Column("printed_percent", "printed %", 2),
        Column("in_files_percent", "in its files %", 1),
        Column("average_percent", "average %", 2),
        Column("first_percent", "first %", 2),
    )
    return Table("accuracies", "Test accuracy, published and here", columns, tuple(rows))


def seconds(study: StudyResult) -> Table:
    """Say what training took by the number of workers, beside what was published."""
    printed = {one.workers: one.seconds for one in PUBLISHED if one.seconds is not None}
    rows = tuple(
        (workers, printed.get(workers), *_seconds_of(runs))
        for (workers,), runs in subgrid_of(study, "workers").measured
    )
    columns = (
        Column("workers", "workers", 0),
        Column("printed_seconds", "printed s", 2),
        Column("train_seconds", "training s", 1),
        Column("evaluate_seconds", "evaluation s", 1),
    )
    return Table("seconds", "Seconds of five epochs, published and here", columns, rows)


def splitting(study: StudyResult) -> Table:
    """Say what each split costs: cutting it, and training on it."""
    rows = []
    for (split, aggregate), runs in subgrid_of(study, "splits").measured:
        cut = Estimate.of(1000 * run.result.split_seconds for run in runs)
        shares = (100 * r.result.split_seconds / r.result.train_seconds for r in runs)
        trained = Estimate.of(run.result.train_seconds for run in runs)
        rows.append((split, aggregate, cut, Estimate.of(shares), trained))
    columns = (
        Column("split", "split"),
        Column("aggregate", "aggregate"),
        Column("split_milliseconds", "splitting ms", 1),
        Column("split_share_percent", "of the training %", 3),
        Column("train_seconds", "training s", 1),
    )
    return Table("splitting", "What splitting costs", columns, tuple(rows))


def _seconds_of(runs: Sequence[RunResult]) -> Iterator[Estimate | None]:
    yield Estimate.of(run.result.train_seconds for run in runs)
    yield Estimate.of(run.result.evaluate_seconds for run in runs)


def narrowed(subgrid: SubgridResult, axis: str, value: Any) -> SubgridResult:
    """Take of a subgrid what has a value on an axis, without that axis."""
    place = subgrid.axes.index(axis)

    def rest(values: tuple[Any, ...]) -> tuple[Any, ...]:
        return values[:place] + values[place + 1 :]

    return replace(
        subgrid,
        axes=rest(subgrid.axes),
        settings=tuple(rest(v) for v in subgrid.settings if v[place] == value),
        runs=tuple(
            replace(r, values=rest(r.values)) for r in subgrid.runs if r.values[place] == value
        ),
    )


def mark(axis: Axes, xs: Sequence[float], percents: Sequence[float], **look: Any) -> None:
    """Draw what was published, and make room for it where ours is far from it."""
    low, high = axis.get_ylim()
    axis.plot(xs, percents, **{**PRINTED, **look})
    axis.set_ylim(max(0, min(low, min(percents) - 3)), min(100, max(high, max(percents) + 3)))


def by_workers(study: StudyResult) -> Figure:
    """Draw accuracy against epoch for each number of workers."""
    subgrid = subgrid_of(study, "workers")
    figure = learning_figure(subgrid)
    for one in PUBLISHED:
        if one.split == "random":
            look = series(subgrid.settings.index((one.workers,)))
            mark(figure.axes[0], EPOCHS, one.printed, color=look["color"])
    return figure


def time_by_workers(study: StudyResult) -> Figure:
    """Draw training time against the number of workers."""
    figure = outcome_figure(subgrid_of(study, "workers"), "time")
    timed = [(one.workers, one.seconds) for one in PUBLISHED if one.seconds is not None]
    ours = figure.axes[0].get_ylim()[1]
    figure.axes[0].plot(*zip(*timed, strict=True), **PRINTED)
    figure.axes[0].set_ylim(0, max(ours, *(1.05 * taken for _, taken in timed)))
    return figure


def by_aggregation(split: str) -> Callable[[StudyResult], Figure]:
    """Draw accuracy against epoch for each aggregation of a split."""

    def draw(study: StudyResult) -> Figure:
        figure = learning_figure(narrowed(subgrid_of(study, "splits"), "split", split))
        printed = next(one.printed for one in PUBLISHED if one.workers > 1 and one.split == split)
        mark(figure.axes[0], EPOCHS, printed)
        return figure

    return draw


def final_accuracies(study: StudyResult) -> Figure:
    """Draw the final accuracy of every split and aggregation, as bars."""
    figure = outcome_figure(subgrid_of(study, "splits"), Measure("accuracy"))
    splits = list(dict.fromkeys(values[0] for values in subgrid_of(study, "splits").settings))
    marked = [(splits.index(o.split), o.printed[-1]) for o in PUBLISHED if o.workers > 1]
    mark(figure.axes[0], [place - 0.45 for place, _ in marked], [percent for _, percent in marked])
    return figure


FIGURES: tuple[tuple[str, Callable[[StudyResult], Figure]], ...] = (
    ("workers", by_workers),
    ("workers", time_by_workers),
    *(("splits", by_aggregation(split)) for split in ("random", "equal", "class")),
    ("splits", final_accuracies),
    ("splits", lambda study: outcome_figure(subgrid_of(study, "splits"), "time")),
    ("splits", lambda study: classes_figure(subgrid_of(study, "splits"))),
)
"""Figures 1 to 8, each with the experiment that it is drawn from."""


def draw(study: StudyResult, folder: Path) -> None:
    """Draw the figures of experiments that have a run of everything."""
    folder.mkdir(exist_ok=True)
    for number, (name, drawn) in enumerate(FIGURES, 1):
        subgrid = subgrid_of(study, name)
        if len(subgrid.measured) < len(subgrid.settings):
            continue
        figure = drawn(study)
        if any(line.get_marker() == "x" for axis in figure.axes for line in axis.lines):
            with styled():
                mark = Line2D([], [], **PRINTED)
                figure.legend([mark], ["as published"], loc="outside upper right")
        (folder / f"figure-{number}.png").write_bytes(to_png(figure))
        (folder / f"figure-{number}.svg").write_text(to_svg(figure, f"figure-{number}"), "utf-8")


def main() -> None:
    """Print the tables and write the figures into the grid's folder."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="the folder of the grid")
    folder = parser.parse_args().folder
    try:
        study = grid_results(read_folder(folder, Grid))
    except DownpourError as error:
        sys.exit(str(error))
    for table in (accuracies(study), seconds(study), splitting(study)):
        print(table.to_markdown())  # noqa: T201
    draw(study, folder / "published")


if __name__ == "__main__":
    main()
