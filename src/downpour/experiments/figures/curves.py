"""Learning curves: a metric and the losses after every epoch, or over seconds.

A line goes through the means of a setting's repetitions. If a subgrid has two axes or more,
each value of the first axis has a panel.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import TYPE_CHECKING

from downpour.experiments.figures.drawing import (
    Dot,
    Look,
    draw_line,
    legend,
    looks_of,
    name_of,
    panels_of,
    spoken,
)
from downpour.experiments.figures.style import (
    LIGHT,
    count_from_one,
    keep_per_cent,
    series,
    styled,
)
from downpour.experiments.reading.result_parts import RoundResult
from downpour.experiments.reading.statistics import Estimate
from downpour.experiments.reading.study_result import RunResult, SubgridResult, label
from downpour.experiments.tables.report_tables import measured_by, part_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_LOG_RATIO = 30
"""We draw losses this far apart in decades: on a linear axis, all small ones look alike."""
_THIN: Look = {"marker": "", "linewidth": 0.9}


@dataclass(frozen=True, slots=True)
class _Curve:
    """The content of lines: a value for each epoch, and the look that all lines share.

    On an axis of decades, a band that reaches zero would fill the panel, so losses have no bands.
    """

    value: Callable[[RoundResult], float | None]
    look: Look
    has_band: bool


@dataclass(frozen=True, slots=True)
class _Line:
    name: str
    dots: list[Dot]
    look: Look


def learning_figure(subgrid: SubgridResult) -> Figure:
    """Draw the first metric by epoch."""
    figure = _metric_figure(subgrid, _epoch)
    with styled():
        figure.axes[-1].set_xlabel("epoch")
        count_from_one(figure.axes[-1])
    return figure


def pace_figure(subgrid: SubgridResult) -> Figure:
    """Draw the first metric over the seconds of training and aggregation."""
    figure = _metric_figure(subgrid, _seconds)
    with styled():
        figure.axes[-1].set_xlabel("training and aggregation, s")
        figure.axes[-1].set_xlim(left=0)
    return figure


def loss_figure(subgrid: SubgridResult) -> Figure:
    """Draw the losses by epoch; training losses are thin lines without marks."""
    tested, trained = (
        _Curve(lambda e: e.test_loss, {}, has_band=False),
        _Curve(lambda e: e.train_loss, _THIN, has_band=False),
    )
    panels = _panels(subgrid, [tested, trained], _epoch)
    values = [e.mean for lines in panels.values() for line in lines for _, e in line.dots]
    with styled():
        figure = _drawn(subgrid, panels)
        _tell_kinds(figure.axes[0], f"{part_of(subgrid)} loss", is_alone=len(subgrid.settings) == 1)
        for axis in figure.axes:
            axis.set_ylabel("loss")
        if min(values) > 0 and max(values) / min(values) > _LOG_RATIO:
            _in_decades(figure.axes[0])
        figure.axes[-1].set_xlabel("epoch")
        count_from_one(figure.axes[-1])
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


def _metric_figure(subgrid: SubgridResult, along: Callable[..., float]) -> Figure:
    measure = replace(measured_by(subgrid)[0], part=part_of(subgrid))
    curve = _Curve(lambda epoch: measure.shown(epoch.measured(measure.name)), {}, has_band=True)
    with styled():
        figure = _drawn(subgrid, _panels(subgrid, [curve], along))
        for axis in figure.axes:
            axis.set_ylabel(measure.axis)
        if measure.is_share:
            keep_per_cent(figure.axes[0])
    return figure


def _panels(
    subgrid: SubgridResult, curves: Iterable[_Curve], along: Callable[..., float]
) -> dict[str, list[_Line]]:
    """Return the lines of each panel, by its title."""
    curves, faceted = list(curves), len(subgrid.axes) > 1
    panels: dict[str, list[_Line]] = {}
    for values, runs in subgrid.measured:
        panel = f"{spoken(subgrid.axes[0])}: {label(values[0])}" if faceted else ""
        lines = panels.setdefault(panel, [])
        for curve in curves:
            dots = _dots(runs, curve, along)
            lines += [_Line(name_of(values[faceted:]), dots, curve.look)] if dots else []
    return panels


def _dots(runs: Sequence[RunResult], curve: _Curve, along: Callable[..., float]) -> list[Dot]:
    dots = []
    for epoch in range(max(len(run.result.epochs) for run in runs)):
        there = [run.result.epochs for run in runs if epoch < len(run.result.epochs)]
        estimate = Estimate.of(curve.value(epochs[epoch]) for epochs in there)
        if estimate is not None:
            shown = estimate if curve.has_band else replace(estimate, half_width=None)
            dots.append((along(there, epoch), shown))
    return dots


def _epoch(_: Sequence[Sequence[RoundResult]], epoch: int) -> float:
    return float(epoch + 1)


def _seconds(runs: Sequence[Sequence[RoundResult]], epoch: int) -> float:
    """Return when an epoch ended, averaged over the runs and without evaluation times."""
    return fmean(
        sum(one.train_seconds + one.aggregate_seconds for one in epochs[: epoch + 1])
        for epochs in runs
    )


def _drawn(subgrid: SubgridResult, panels: Mapping[str, Sequence[_Line]]) -> Figure:
    """Draw panels of lines, and below them a legend of the drawn settings."""
    faceted = len(subgrid.axes) > 1
    looks = looks_of(name_of(values[faceted:]) for values in subgrid.settings)
    figure, axes = panels_of(len(panels))
    for axis, (title, lines) in zip(axes, panels.items(), strict=True):
        for line in lines:
            draw_line(axis, line.dots, {**looks[line.name], **line.look})
        axis.set_title(title)
    drawn = {line.name for lines in panels.values() for line in lines}
    shown = {name: look for name, look in looks.items() if name in drawn}
    legend(figure, shown, subgrid.axes[faceted:])
    return figure


def _tell_kinds(axis: Axes, tested: str, *, is_alone: bool) -> None:
    """Name the loss of each kind of line, in the room that falling lines leave."""
    from matplotlib.lines import Line2D

    look = series(0) if is_alone else {**series(0), "color": LIGHT["muted"]}
    kinds = {tested: look, "training loss": {**look, **_THIN}}
    handles = [Line2D([], [], **one) for one in kinds.values()]
    axis.legend(handles, list(kinds), loc="upper right")


def _in_decades(axis: Axes) -> None:
    from matplotlib.ticker import StrMethodFormatter

    axis.set_yscale("log")
    axis.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
