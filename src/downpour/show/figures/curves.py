"""Figures of a study: curves, outcomes by setting, and classes.

A line goes through the means of a setting's repetitions. If a subgrid has two axes or more, each
value of the first axis has a panel.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from statistics import fmean
from typing import TYPE_CHECKING, Literal

import numpy as np
import numpy.typing as npt

from downpour.record.result_parts import Estimate, Measure, RoundResult
from downpour.record.study_result import RunResult, SubgridResult, field_words, label
from downpour.show.figures import style
from downpour.show.tables.report_tables import final_classes, measured_by, part_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_LOG_RATIO = 30
"""We draw losses this far apart in decades: on a linear axis, all small ones look alike."""
_THIN: style.Look = {"marker": "", "linewidth": 0.9}


@dataclass(frozen=True, slots=True)
class _Curve:
    """The content of lines: a value for each epoch, and the look that all lines share.

    On an axis of decades, a band that reaches zero would fill the panel, so losses have no bands.
    """

    value: Callable[[RoundResult], float | None]
    look: style.Look
    has_band: bool


@dataclass(frozen=True, slots=True)
class _Line:
    name: str
    dots: list[style.Dot]
    look: style.Look


_Along = Callable[[Sequence[RoundResult]], Sequence[float]]
"""Places a run's epochs along the axis."""


def learning_figure(subgrid: SubgridResult) -> Figure:
    """Draw the first metric by epoch."""
    return _metric_figure(subgrid, _numbers)


def pace_figure(subgrid: SubgridResult) -> Figure:
    """Draw the first metric over the seconds of training and aggregation."""
    return _metric_figure(subgrid, _seconds)


def loss_figure(subgrid: SubgridResult) -> Figure:
    """Draw the losses by epoch; training losses are thin lines without marks."""
    tested = _Curve(lambda e: e.test_loss, {}, has_band=False)
    trained = _Curve(lambda e: e.train_loss, _THIN, has_band=False)
    panels = _panels(subgrid, [tested, trained], _numbers)
    values = [e.mean for lines in panels.values() for line in lines for _, e in line.dots]
    with style.styled():
        figure = _drawn(subgrid, panels)
        _tell_kinds(figure.axes[0], f"{part_of(subgrid)} loss", is_alone=len(subgrid.settings) == 1)
        for axis in figure.axes:
            axis.set_ylabel("loss")
        if min(values) > 0 and max(values) / min(values) > _LOG_RATIO:
            style.in_decades(figure.axes[0], "y")
        figure.axes[-1].set_xlabel("epoch")
        style.count_from_one(figure.axes[-1])
    return figure


def has_loss_course(subgrid: SubgridResult) -> bool:
    """Whether there is a loss of several epochs: a single one is no curve."""
    return _has_course(subgrid, lambda e: e.train_loss) or _has_course(
        subgrid, lambda e: e.test_loss
    )


def has_course(subgrid: SubgridResult) -> bool:
    """Whether the first metric was measured after several epochs."""
    name = measured_by(subgrid)[0].name
    return _has_course(subgrid, lambda epoch: epoch.measured(name))


def _has_course(subgrid: SubgridResult, value: Callable[[RoundResult], float | None]) -> bool:
    counts = (sum(value(e) is not None for e in run.result.epochs) for run in subgrid.runs)
    return max(counts, default=0) > 1


def _metric_figure(subgrid: SubgridResult, along: _Along) -> Figure:
    measure = replace(measured_by(subgrid)[0], part=part_of(subgrid))
    curve = _Curve(lambda epoch: measure.shown(epoch.measured(measure.name)), {}, has_band=True)
    with style.styled():
        figure = _drawn(subgrid, _panels(subgrid, [curve], along))
        for axis in figure.axes:
            axis.set_ylabel(measure.axis)
        if measure.is_share:
            style.keep_per_cent(figure.axes[0])
        if along is _numbers:
            figure.axes[-1].set_xlabel("epoch")
            style.count_from_one(figure.axes[-1])
        else:
            figure.axes[-1].set_xlabel("training and aggregation, s")
            figure.axes[-1].set_xlim(left=0)
    return figure


def _panels(
    subgrid: SubgridResult, curves: Iterable[_Curve], along: _Along
) -> dict[str, list[_Line]]:
    curves, faceted = list(curves), len(subgrid.axes) > 1
    panels: dict[str, list[_Line]] = {}
    for values, runs in subgrid.measured:
        panel = f"{field_words(subgrid.axes[0])}: {label(values[0])}" if faceted else ""
        lines = panels.setdefault(panel, [])
        for curve in curves:
            dots = _dots(runs, curve, along)
            lines += [_Line(style.name_of(values[faceted:]), dots, curve.look)] if dots else []
    return panels


def _dots(runs: Sequence[RunResult], curve: _Curve, along: _Along) -> list[style.Dot]:
    dots = []
    courses = [(run.result.epochs, along(run.result.epochs)) for run in runs]
    for epoch in range(max(len(epochs) for epochs, _ in courses)):
        there = [course for course in courses if epoch < len(course[0])]
        estimate = Estimate.of(curve.value(epochs[epoch]) for epochs, _ in there)
        if estimate is not None:
            shown = estimate if curve.has_band else replace(estimate, half_width=None)
            dots.append((fmean(places[epoch] for _, places in there), shown))
    return dots


def _numbers(epochs: Sequence[RoundResult]) -> Sequence[float]:
    return range(1, len(epochs) + 1)


def _seconds(epochs: Sequence[RoundResult]) -> Sequence[float]:
    """Return when each epoch ended, without evaluation times."""
    return [*accumulate(each.train_seconds + each.aggregate_seconds for each in epochs)]


def _drawn(subgrid: SubgridResult, panels: Mapping[str, Sequence[_Line]]) -> Figure:
    faceted = len(subgrid.axes) > 1
    looks = style.looks_of(style.name_of(values[faceted:]) for values in subgrid.settings)
    figure, axes = style.panels_of(len(panels))
    for axis, (title, lines) in zip(axes, panels.items(), strict=True):
        for line in lines:
            style.draw_line(axis, line.dots, {**looks[line.name], **line.look})
        axis.set_title(title)
    drawn = {line.name for lines in panels.values() for line in lines}
    shown = {name: look for name, look in looks.items() if name in drawn}
    style.legend(figure, shown, subgrid.axes[faceted:])
    return figure


def _tell_kinds(axis: Axes, tested: str, *, is_alone: bool) -> None:
    """Name the loss of each kind of line, in the room that falling lines leave."""
    from matplotlib.lines import Line2D

    look = style.series(0) if is_alone else {**style.series(0), "color": style.LIGHT["muted"]}
    kinds = {tested: look, "training loss": {**look, **_THIN}}
    handles = [Line2D([], [], **kind) for kind in kinds.values()]
    axis.legend(handles, list(kinds), loc="upper right")


Shown = Measure | Literal["time"]


def outcome_figure(subgrid: SubgridResult, measure: Shown) -> Figure:
    """Draw the outcome of each setting: lines along an axis of numbers, or grouped bars."""
    numeric = numeric_axis(subgrid)
    ahead = max(numeric, 0)
    rest = [axis for place, axis in enumerate(subgrid.axes) if place != ahead]
    looks = style.looks_of(style.name_of(v[:ahead] + v[ahead + 1 :]) for v in subgrid.settings)
    with style.styled():
        figure, (axis,) = style.panels_of(1)
        lines = _lines_along(subgrid, ahead, measure)
        shown = [values for values, _ in subgrid.measured]
        if numeric < 0:
            shown = [v for v in subgrid.settings if v in shown or v in subgrid.lost]
        places = {style.place_of(subgrid, ahead, v): label(v[ahead]) for v in shown}
        bars = {place: lines[name] for place, name in enumerate(looks) if name in lines}
        if numeric >= 0:
            for name, points in lines.items():
                style.draw_whiskers(axis, points, looks[name])
            style.name_numbers(axis, places)
        else:
            style.draw_bars(axis, bars, len(looks))
            style.mark_lost(axis, subgrid, list(looks))
            style.name_clusters(axis, places)
        axis.set_xlabel(field_words(subgrid.axes[ahead]))
        axis.set_ylabel("training, s" if measure == "time" else f"final {measure.axis}")
        if measure == "time" or numeric < 0:
            low, high = axis.get_ylim()
            axis.set_ylim(min(0, 1.04 * low), 1.04 * high)
        if measure != "time" and measure.is_share:
            style.keep_per_cent(axis)
        if numeric < 0:
            style.tell_heights(axis, bars, len(looks), len(places))
        style.legend(figure, looks, rest, are_areas=numeric < 0)
    return figure


def _lines_along(subgrid: SubgridResult, ahead: int, measure: Shown) -> dict[str, list[style.Dot]]:
    """Sort the settings into lines by their other axes."""
    lines: dict[str, list[style.Dot]] = {}
    for values, runs in subgrid.measured:
        if measure == "time":
            estimate = Estimate.of(run.result.train_seconds for run in runs)
        else:
            shown = (measure.shown(run.result.measured(measure.name)) for run in runs)
            estimate = Estimate.of(shown)
        if estimate is not None:
            name = style.name_of(values[:ahead] + values[ahead + 1 :])
            lines.setdefault(name, []).append((style.place_of(subgrid, ahead, values), estimate))
    return {name: sorted(dots, key=lambda dot: dot[0]) for name, dots in lines.items()}


def numeric_axis(subgrid: SubgridResult) -> int:
    """Return the index of the first axis that has several numbers; -1 if none has."""
    return next(
        (place for place, axis in enumerate(subgrid.axes) if style.is_numeric(subgrid, axis)), -1
    )


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
    rows = [(v, r) for v, r in subgrid.measured if final_classes(r[0])]
    shares = _percents([[final_classes(run) for run in runs] for _, runs in rows])
    names = [", ".join(map(label, values)) or subgrid.name for values, _ in rows]
    axes = ", ".join(map(field_words, subgrid.axes)), "class"
    return _map_figure(shares, axes, names, range(shares.shape[1]), 0.32)


def class_course_figure(runs: Sequence[RunResult]) -> Figure:
    """Draw the accuracy of each class after each epoch: a row per class, a column per epoch.

    If epochs are many, we draw every nth, up to the last. The runs are the repetitions of a
    setting; `has_class_course` must hold for them.
    """
    columns = _evaluated(runs)
    every = -(-len(columns) // _EPOCHS_MAX)
    epochs = list(columns)[::-every][::-1]
    shares = _percents([list(columns[epoch].values()) for epoch in epochs]).T
    return _map_figure(shares, ("class", "epoch"), range(len(shares)), epochs, 0.2)


def has_class_course(runs: Sequence[RunResult]) -> bool:
    """Whether few classes were evaluated after several epochs."""
    columns = _evaluated(runs)
    counts = {len(shares) for by_run in columns.values() for shares in by_run.values()}
    return len(columns) > 1 and all(2 <= count <= CLASSES_MAX for count in counts)


def _evaluated(runs: Sequence[RunResult]) -> dict[int, dict[str, tuple[float | None, ...]]]:
    """Return the classes' accuracies after each epoch, by the experiments' names."""
    columns: dict[int, dict[str, tuple[float | None, ...]]] = {}
    for run in runs:
        for epoch in run.result.epochs:
            if epoch.class_accuracy:
                by_run = columns.setdefault(epoch.epoch, {})
                by_run[run.result.experiment] = epoch.class_accuracy
    return dict(sorted(columns.items()))


def _percents(rows: Sequence[Sequence[Sequence[float | None]]]) -> Shares:
    """Return the means over repetitions in percent, shape (rows, classes); NaN for no examples."""
    count = max(len(classes) for repetitions in rows for classes in repetitions)
    shares = np.full((len(rows), count), np.nan)
    for row, repetitions in enumerate(rows):
        for column in range(count):
            estimate = Estimate.of(each[column] for each in repetitions if column < len(each))
            shares[row, column] = np.nan if estimate is None else 100 * estimate.mean
    return shares


def _map_figure(
    shares: Shares,
    axes: tuple[str, str],
    rows: Sequence[object],
    columns: Sequence[object],
    inches: float,
) -> Figure:
    """Draw a square for each share, the first row on top; write numbers where they fit.

    `axes` name the rows and the columns; a row is this many `inches` high.
    """
    with style.styled():
        figure, (axis,) = style.panels_of(1, inches=0.9 + inches * len(rows))
        squares = axis.pcolormesh(
            shares, vmin=0, vmax=100, cmap="cividis", edgecolors="face", lw=0.3
        )
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
        axis.set(ylabel=axes[0], xlabel=axes[1])
        axis.set_yticks(np.arange(len(rows)) + 0.5, [*map(str, rows)])
        places = range(0, len(columns), 1 + len(columns) // _TICKS_MAX)
        axis.set_xticks([place + 0.5 for place in places], [str(columns[p]) for p in places])
    return figure
