"""The outcome of each setting of a subgrid: lines along an axis of numbers, or grouped bars."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

from downpour.experiments.figures.drawing import (
    Dot,
    draw_bars,
    draw_whiskers,
    is_numeric,
    legend,
    looks_of,
    mark_lost,
    name_clusters,
    name_numbers,
    name_of,
    panels_of,
    place_of,
    spoken,
    tell_heights,
)
from downpour.experiments.figures.style import keep_per_cent, styled
from downpour.experiments.reading.measures import Measure
from downpour.experiments.reading.statistics import Estimate
from downpour.experiments.reading.study_result import RunResult, SubgridResult, label

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Shown = Measure | Literal["time"]


def outcome_figure(subgrid: SubgridResult, measure: Shown) -> Figure:
    """Draw the outcome of each setting: lines along an axis of numbers, or grouped bars."""
    numeric = numeric_axis(subgrid)
    ahead = max(numeric, 0)
    rest = [axis for place, axis in enumerate(subgrid.axes) if place != ahead]
    looks = looks_of(name_of(v[:ahead] + v[ahead + 1 :]) for v in subgrid.settings)
    with styled():
        figure, (axis,) = panels_of(1)
        lines = _lines_along(subgrid, ahead, measure)
        shown = [values for values, _ in subgrid.measured]
        if numeric < 0:
            shown = [v for v in subgrid.settings if v in shown or v in subgrid.lost]
        places = {place_of(subgrid, ahead, v): label(v[ahead]) for v in shown}
        bars = {place: lines[name] for place, name in enumerate(looks) if name in lines}
        if numeric >= 0:
            for name, points in lines.items():
                draw_whiskers(axis, points, looks[name])
            name_numbers(axis, places)
        else:
            draw_bars(axis, bars, len(looks))
            mark_lost(axis, subgrid, list(looks))
            name_clusters(axis, places)
        axis.set_xlabel(spoken(subgrid.axes[ahead]))
        axis.set_ylabel("training, s" if measure == "time" else f"final {measure.axis}")
        if measure == "time" or numeric < 0:
            low, high = axis.get_ylim()
            axis.set_ylim(min(0, 1.04 * low), 1.04 * high)
        if measure != "time" and measure.is_share:
            keep_per_cent(axis)
        if numeric < 0:
            tell_heights(axis, bars, len(looks), len(places))
        legend(figure, looks, rest, are_areas=numeric < 0)
    return figure


def _lines_along(subgrid: SubgridResult, ahead: int, measure: Shown) -> dict[str, list[Dot]]:
    """Sort the settings into lines by their other axes."""
    lines: dict[str, list[Dot]] = {}
    for values, runs in subgrid.measured:
        estimate = _estimate(runs, measure)
        if estimate is not None:
            name = name_of(values[:ahead] + values[ahead + 1 :])
            lines.setdefault(name, []).append((place_of(subgrid, ahead, values), estimate))
    return {name: sorted(dots, key=lambda dot: dot[0]) for name, dots in lines.items()}


def _estimate(runs: Sequence[RunResult], measure: Shown) -> Estimate | None:
    if measure == "time":
        return Estimate.of(run.result.train_seconds for run in runs)
    return Estimate.of(measure.shown(run.result.measured(measure.name)) for run in runs)


def numeric_axis(subgrid: SubgridResult) -> int:
    """Return the index of the first axis that has several numbers; -1 if none has."""
    return next((place for place, axis in enumerate(subgrid.axes) if is_numeric(subgrid, axis)), -1)
