"""The figure of one experiment: its metrics, and its losses, after each epoch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from downpour.base.evaluations import LOSS
from downpour.experiments.figures.shown import new_figure
from downpour.experiments.figures.style import (
    WIDTH_INCHES,
    count_from_one,
    keep_per_cent,
    series,
    styled,
)
from downpour.experiments.reading.measures import Measure, names_of
from downpour.experiments.reading.result import Result
from downpour.experiments.reading.result_parts import RoundResult

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_PANEL_INCHES = 2.0
_METRICS_MAX = 3
"""A screen shows no more than this many metrics together with the losses."""


def result_figure(result: Result) -> Figure:
    """Draw a result's first metrics by epoch, one panel each, and its losses in one below."""
    metrics = [
        Measure(name, result.part)
        for name in names_of(epoch.metrics for epoch in result.epochs)[:_METRICS_MAX]
    ]
    with styled():
        figure = new_figure(WIDTH_INCHES, 0.5 + _PANEL_INCHES * (len(metrics) + 1))
        axes = figure.subplots(len(metrics) + 1, 1, sharex=True, squeeze=False)[:, 0]
        for axis, measure in zip(axes, metrics, strict=False):
            values = [measure.shown(epoch.measured(measure.name)) for epoch in result.epochs]
            _draw(axis, 0, result.epochs, values)
            axis.set_ylabel(measure.axis)
            if measure.is_share:
                keep_per_cent(axis)
        losses = {
            result.part: [epoch.test_loss for epoch in result.epochs],
            "training": [epoch.train_loss for epoch in result.epochs],
        }
        for place, (name, values) in enumerate(losses.items()):
            _draw(axes[-1], place, result.epochs, values, name)
        axes[-1].set_ylabel(LOSS)
        axes[-1].set_xlabel("epoch")
        axes[-1].legend()
        count_from_one(axes[-1])
    return figure


def _draw(
    axis: Axes,
    place: int,
    epochs: Sequence[RoundResult],
    values: Sequence[float | None],
    name: str = "",
) -> None:
    """Draw a line through the measured values."""
    points = zip((epoch.epoch for epoch in epochs), values, strict=True)
    measured = [(x, y) for x, y in points if y is not None]
    xs, ys = [x for x, _ in measured], [y for _, y in measured]
    axis.plot(xs, ys, label=name, clip_on=False, **series(place))
