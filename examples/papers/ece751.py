"""What the ECE751 report published, beside a grid of `ece751.toml` that was run here.

    downpour experiment examples/papers/ece751.toml
    python examples/papers/ece751.py results/ece751

It prints a table and draws a figure, as far as the grid has come. The report prints the test
accuracy after the first and the last of five epochs. The code published with it computed the mean
of the workers' parameters and then went on from the first worker's, so what it printed is to be
compared with `first`, not only with `average`.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from downpour.errors import DownpourError
from downpour.experiments import Folder
from downpour.reports.drawing import to_png, to_svg
from downpour.reports.statistics import Estimate
from downpour.reports.study import Run, Study
from downpour.reports.style import LIGHT, WIDTH_INCHES, series, styled
from downpour.reports.summary import Cell, Column, Table


@dataclass(frozen=True)
class Published:
    """One setting of the report: its accuracy in per cent after the first and the last epoch."""

    title: str
    first_epoch: float
    last_epoch: float
    ours: dict[str, tuple[str, tuple[Any, ...]]]
    """Our settings to compare with, by name: the group, and the place on its axes."""


def splits(split: str) -> dict[str, tuple[str, tuple[Any, ...]]]:
    """Name our settings of a split: the mean, and what the published code did."""
    return {name: ("splits", (split, name)) for name in ("average", "first")}


PUBLISHED = (
    Published("1 worker", 95.41, 98.64, {"average": ("workers", (1,))}),
    Published("10 workers, random", 85.37, 92.65, splits("random")),
    Published("10 workers, equal", 87.58, 93.51, splits("equal")),
    Published("10 workers, class", 9.80, 9.80, splits("class")),
)


def runs_of(study: Study, place: tuple[str, tuple[Any, ...]]) -> list[Run]:
    """Return our runs of a setting."""
    name, values = place
    return next(group for group in study.groups if group.name == name).at(values)


def accuracy(runs: list[Run], epoch: int) -> Estimate | None:
    """Estimate the accuracy in per cent after an epoch, counted from 1."""
    rounds = [run.result.rounds[epoch - 1] for run in runs if len(run.result.rounds) >= epoch]
    return Estimate.of(None if r.accuracy is None else 100 * r.accuracy for r in rounds)


def table(study: Study) -> Table:
    """Lay the published figures and ours side by side."""
    rows: list[tuple[Cell, ...]] = []
    for one in PUBLISHED:
        for epoch, published in ((1, one.first_epoch), (5, one.last_epoch)):
            ours = (one.ours.get(name) for name in ("average", "first"))
            found = (accuracy(runs_of(study, place), epoch) if place else None for place in ours)
            rows.append((one.title, epoch, published, *found))
    columns = (
        Column("setting", "setting"),
        Column("epoch", "epoch", 0),
        Column("published_percent", "published %", 2),
        Column("average_percent", "average %", 2),
        Column("first_percent", "first %", 2),
    )
    return Table("published", "Test accuracy, published and here", columns, tuple(rows))


def figure(study: Study) -> Figure:
    """Draw our curves, and what was published as crosses."""
    with styled():
        drawn = Figure(figsize=(1.4 * WIDTH_INCHES, 4.6), layout="constrained")
        panels = drawn.subplots(2, 2).flat
        for axis, one in zip(panels, PUBLISHED, strict=True):
            for place, (name, setting) in enumerate(one.ours.items()):
                runs = runs_of(study, setting)
                dots = [(epoch, accuracy(runs, epoch)) for epoch in range(1, 6)]
                known = [(epoch, estimate.mean) for epoch, estimate in dots if estimate]
                axis.plot([x for x, _ in known], [y for _, y in known], label=name, **series(place))
            axis.plot(
                [1, 5],
                [one.first_epoch, one.last_epoch],
                color=LIGHT["ink"],
                marker="x",
                markersize=7,
                linestyle="none",
                label="published",
            )
            axis.set_title(one.title)
            axis.set_xticks(range(1, 6))
            axis.set_ylabel("test accuracy, %")
            axis.set_xlabel("epoch")
        handles, names = axis.get_legend_handles_labels()
        drawn.legend(handles, names, loc="outside lower center", ncols=3)
    return drawn


def main() -> None:
    """Print the table and write the figure into the grid's folder."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="the folder of the grid")
    folder = parser.parse_args().folder
    try:
        study = Folder.read(folder).study()
    except DownpourError as error:
        sys.exit(str(error))
    print(table(study).to_markdown())  # noqa: T201
    drawn = figure(study)
    (folder / "published.png").write_bytes(to_png(drawn))
    (folder / "published.svg").write_text(to_svg(drawn, "published"), "utf-8")


if __name__ == "__main__":
    main()
