"""Accuracy for each class, as maps of squares: by setting, or by epoch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from downpour.experiments.figures.drawing import panels_of, spoken
from downpour.experiments.figures.style import styled
from downpour.experiments.reading.statistics import Estimate
from downpour.experiments.reading.study_result import RunResult, SubgridResult, label
from downpour.experiments.tables.report_tables import final_classes

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

CLASSES_MAX = 20
"""Maximum classes in a figure by epochs, whose rows a reader must tell apart."""
_SQUARES_MAX = 12
"""Maximum squares in a row; with more, none has room for its number."""
_TICKS_MAX = 20
_EPOCHS_MAX = 60
"""Maximum epochs in a map; with more, we draw every nth epoch."""
_LIGHT_PERCENT = 55
"""From this value on, a square is light and its number dark."""
Shares = npt.NDArray[np.float64]


def classes_figure(subgrid: SubgridResult) -> Figure:
    """Draw the accuracy of each class as a map: a row per setting, a column per class."""
    rows = [(v, r) for v, r in subgrid.measured if r[0].has_uneven_data and final_classes(r[0])]
    shares = _percents([[final_classes(run) for run in runs] for _, runs in rows])
    names = [", ".join(map(label, values)) or subgrid.name for values, _ in rows]
    with styled():
        figure, (axis,) = panels_of(1, inches=0.9 + 0.32 * len(rows))
        _draw_squares(figure, axis, shares)
        axis.set_yticks(np.arange(len(rows)) + 0.5, names)
        axis.set_ylabel(", ".join(map(spoken, subgrid.axes)))
        _name_columns(axis, range(shares.shape[1]))
        axis.set_xlabel("class")
    return figure


def class_course_figure(runs: Sequence[RunResult]) -> Figure:
    """Draw the accuracy of each class after each epoch: a row per class, a column per epoch.

    If epochs are many, we draw every nth, up to the last. The runs are the repetitions of a
    setting; `has_class_course` must hold for them.
    """
    columns = _evaluated(runs)
    every = -(-len(columns) // _EPOCHS_MAX)
    epochs = list(columns)[::-every][::-1]
    shares = _percents([list(columns[epoch].values()) for epoch in epochs]).T
    with styled():
        figure, (axis,) = panels_of(1, inches=0.9 + 0.2 * len(shares))
        _draw_squares(figure, axis, shares)
        axis.set_yticks(np.arange(len(shares)) + 0.5, [str(row) for row in range(len(shares))])
        axis.set_ylabel("class")
        _name_columns(axis, epochs)
        axis.set_xlabel("epoch")
    return figure


def has_class_course(runs: Sequence[RunResult]) -> bool:
    """Whether few classes were evaluated after several epochs."""
    columns = _evaluated(runs)
    counts = {len(one) for known in columns.values() for one in known.values()}
    return len(columns) > 1 and all(2 <= count <= CLASSES_MAX for count in counts)


def _evaluated(runs: Sequence[RunResult]) -> dict[int, dict[str, tuple[float | None, ...]]]:
    """Return the classes' accuracies after each epoch, by the experiments' names."""
    columns: dict[int, dict[str, tuple[float | None, ...]]] = {}
    for run in runs:
        for epoch in run.result.epochs:
            if epoch.class_accuracy:
                known = columns.setdefault(epoch.epoch, {})
                known[run.result.experiment] = epoch.class_accuracy
    return dict(sorted(columns.items()))


def _percents(rows: Sequence[Sequence[Sequence[float | None]]]) -> Shares:
    """Return the means over repetitions in percent, shape (rows, classes); NaN for no examples."""
    count = max(len(known) for repetitions in rows for known in repetitions)
    shares = np.full((len(rows), count), np.nan)
    for row, repetitions in enumerate(rows):
        for column in range(count):
            estimate = Estimate.of(known[column] for known in repetitions if column < len(known))
            shares[row, column] = np.nan if estimate is None else 100 * estimate.mean
    return shares


def _draw_squares(figure: Figure, axis: Axes, shares: Shares) -> None:
    """Draw a square for each share, the first row on top; write numbers where they fit."""
    squares = axis.pcolormesh(shares, vmin=0, vmax=100, cmap="cividis", edgecolors="face", lw=0.3)
    if shares.shape[1] > _SQUARES_MAX:
        figure.colorbar(squares, ax=axis, label="accuracy, %", pad=0.02)
    else:
        for (row, column), share in np.ndenumerate(shares):
            ink = "#ffffff" if share < _LIGHT_PERCENT else "#000000"
            text = "" if np.isnan(share) else f"{share:.0f}"
            axis.text(column + 0.5, row + 0.5, text, color=ink, ha="center", va="center")
    axis.invert_yaxis()
    axis.grid(visible=False)
    axis.tick_params(length=0)
    axis.spines[:].set_visible(False)


def _name_columns(axis: Axes, names: Sequence[int]) -> None:
    every = 1 + len(names) // _TICKS_MAX
    places = range(0, len(names), every)
    axis.set_xticks([place + 0.5 for place in places], [str(names[place]) for place in places])
