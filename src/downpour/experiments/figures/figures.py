"""Figures of a study: its first metric against epoch, the outcome of each setting, and each class.

Every figure comes with a sentence that says what is drawn. Bands and whiskers are 95 % intervals
over the repetitions. Nothing here writes a file.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import TYPE_CHECKING, Literal

from downpour.experiments.figures.drawing import (
    REPETITIONS_MIN,
    Dot,
    draw_bars,
    draw_line,
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
from downpour.experiments.figures.style import (
    count_from_one,
    keep_per_cent,
    styled,
)
from downpour.experiments.figures.timeline_figure import (
    MEASURES,
    measures_of,
    resource_figure,
    timeline_figure,
)
from downpour.experiments.reading.measures import Measure
from downpour.experiments.reading.statistics import Estimate
from downpour.experiments.reading.study_result import RunResult, StudyResult, SubgridResult, label
from downpour.experiments.tables.report_tables import (
    final_classes,
    measured_by,
    part_of,
    setting_of,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TIMELINES_MAX = 24
_INTERVALS = "are 95\u00a0% intervals over the repetitions"
_SQUARES_MAX = 12
"""In a row: where there are more, none has room for its number."""

Shown = Measure | Literal["time"]
Part = Literal["outcome", "timeline", "resources"]
"""Of a page: what a subgrid came to, which worker trained what, and what its processes used."""
Line = tuple[str, list[Dot]]


@dataclass(frozen=True, slots=True)
class Plot:
    """A figure, its subgrid, the name of its files, what it shows, and the part it belongs to."""

    subgrid: str
    name: str
    caption: str
    figure: Figure
    part: Part = "outcome"


def plots_of(study: StudyResult) -> list[Plot]:
    """Draw everything that the study has something for."""
    plots: list[Plot] = []
    asides: dict[str, list[Plot]] = {}
    for subgrid in (subgrid for subgrid in study.subgrids if subgrid.runs):
        plots += _plots_of_subgrid(subgrid)
        for _, runs in subgrid.measured:
            first = runs[0].result.experiment
            if first not in asides and len(asides) < TIMELINES_MAX:
                asides[first] = list(_along_time(subgrid, runs[0]))
    return [*plots, *chain.from_iterable(asides.values())]


def _plots_of_subgrid(subgrid: SubgridResult) -> list[Plot]:
    plots = []
    bands, whiskers = "", ""
    if any(len(runs) >= REPETITIONS_MIN for _, runs in subgrid.measured):
        bands, whiskers = f"; bands {_INTERVALS}", f"; whiskers {_INTERVALS}"
    if subgrid.lost and _numeric_axis(subgrid) < 0:
        whiskers += "; × stands for what failed"
    first = measured_by(subgrid)[0]
    is_measured = any(run.result.measured(first.name) is not None for run in subgrid.runs)
    if is_measured:
        caption = f"{part_of(subgrid).capitalize()} {first.words} after each epoch{bands}"
        name = f"{subgrid.name}-{first.file_stem}"
        plots.append(Plot(subgrid.name, name, caption, learning_figure(subgrid)))
    if len(subgrid.settings) > 1 and is_measured:
        caption = f"{first.words.capitalize()} of the final model{whiskers}"
        figure = outcome_figure(subgrid, first)
        plots.append(Plot(subgrid.name, f"{subgrid.name}-final", caption, figure))
    if len(subgrid.settings) > 1:
        caption = f"Seconds of training, without aggregation and evaluation{whiskers}"
        figure = outcome_figure(subgrid, "time")
        plots.append(Plot(subgrid.name, f"{subgrid.name}-time", caption, figure))
    if any(run.has_uneven_data and final_classes(run) for run in subgrid.runs):
        caption = "How well the final models know each class, in per cent"
        plots.append(
            Plot(subgrid.name, f"{subgrid.name}-classes", caption, classes_figure(subgrid))
        )
    return plots


def _along_time(subgrid: SubgridResult, run: RunResult) -> Iterator[Plot]:
    """Draw what there is of a run over time."""
    setting = setting_of(subgrid, run.values) or subgrid.name
    which = f" (repetition {run.repetition})" if subgrid.repetitions > 1 else ""
    name = run.result.experiment
    if run.attempt_spans:
        caption = f"{setting}: who trained which shard when{which}"
        figure = timeline_figure(run.attempt_spans)
        yield Plot(subgrid.name, f"timeline-{name}", caption, figure, part="timeline")
    if measures := measures_of(run.resources):
        rest = "" if len(measures) == len(MEASURES) else "; what is not drawn was 0 throughout"
        caption = f"{setting}: what the workers' processes used over time{which}{rest}"
        figure = resource_figure(run.resources)
        yield Plot(subgrid.name, f"resources-{name}", caption, figure, part="resources")


def learning_figure(subgrid: SubgridResult) -> Figure:
    """Draw the first metric by epoch: a panel for each value of the first axis if there are two."""
    measure = replace(measured_by(subgrid)[0], part=part_of(subgrid))
    faceted = len(subgrid.axes) > 1
    panels: dict[str, list[Line]] = {}
    for values, runs in subgrid.measured:
        panel = f"{spoken(subgrid.axes[0])}: {label(values[0])}" if faceted else ""
        line = name_of(values[1:] if faceted else values), _by_epoch(runs, measure)
        panels.setdefault(panel, []).append(line)
    looks = looks_of(name_of(v[1:] if faceted else v) for v in subgrid.settings)
    with styled():
        figure, axes = panels_of(len(panels))
        for axis, (title, lines) in zip(axes, panels.items(), strict=True):
            for name, points in lines:
                draw_line(axis, points, looks[name])
            axis.set_title(title)
            axis.set_ylabel(measure.axis)
        if measure.is_share:
            keep_per_cent(axes[0])
        axes[-1].set_xlabel("epoch")
        count_from_one(axes[-1])
        drawn = {name for lines in panels.values() for name, _ in lines}
        shown = {name: look for name, look in looks.items() if name in drawn}
        legend(figure, shown, subgrid.axes[1:] if faceted else subgrid.axes)
    return figure


def outcome_figure(subgrid: SubgridResult, measure: Shown) -> Figure:
    """Draw the outcome of each setting: lines along an axis of numbers, else grouped bars."""
    numeric = _numeric_axis(subgrid)
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


def classes_figure(subgrid: SubgridResult) -> Figure:
    """Draw the accuracy of each class as a map: a row a setting, a column a class."""
    import numpy as np

    rows = [(v, r) for v, r in subgrid.measured if r[0].has_uneven_data and final_classes(r[0])]
    count = max(len(final_classes(run)) for _, runs in rows for run in runs)
    shares = np.full((len(rows), count), np.nan)
    for row, (_, runs) in enumerate(rows):
        for column in range(count):
            known = (dict(enumerate(final_classes(run))).get(column) for run in runs)
            estimate = Estimate.of(known)
            shares[row, column] = np.nan if estimate is None else 100 * estimate.mean
    names = [", ".join(map(label, values)) or subgrid.name for values, _ in rows]
    with styled():
        figure, (axis,) = panels_of(1, inches=0.9 + 0.32 * len(rows))
        squares = axis.pcolormesh(shares, vmin=0, vmax=100, cmap="cividis", edgecolors="none")
        if count > _SQUARES_MAX:
            figure.colorbar(squares, ax=axis, label="accuracy, %", pad=0.02)
        else:
            for (row, column), share in np.ndenumerate(shares):
                ink = "#ffffff" if share < 55 else "#000000"
                text = "" if np.isnan(share) else f"{share:.0f}"
                axis.text(column + 0.5, row + 0.5, text, color=ink, ha="center", va="center")
        axis.set_yticks(np.arange(len(rows)) + 0.5, names)
        axis.set_ylabel(", ".join(map(spoken, subgrid.axes)))
        step = 1 + count // 20
        axis.set_xticks(np.arange(0, count, step) + 0.5, [str(c) for c in range(0, count, step)])
        axis.set_xlabel("class")
        axis.invert_yaxis()
        axis.grid(visible=False)
        axis.tick_params(length=0)
        axis.spines[:].set_visible(False)
    return figure


def _by_epoch(runs: Sequence[RunResult], measure: Measure) -> list[Dot]:
    points = []
    for epoch in range(max(len(run.result.epochs) for run in runs)):
        there = [r.result.epochs[epoch] for r in runs if epoch < len(r.result.epochs)]
        estimate = Estimate.of(measure.shown(r.measured(measure.name)) for r in there)
        if estimate is not None:
            points.append((float(epoch + 1), estimate))
    return points


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


def _numeric_axis(subgrid: SubgridResult) -> int:
    """Return the place of the first axis that has several numbers on it; -1 where none has."""
    return next((place for place, axis in enumerate(subgrid.axes) if is_numeric(subgrid, axis)), -1)
