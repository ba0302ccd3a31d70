"""Figures of a study: its first metric against epoch, the outcome of each setting, and each class.

Every figure comes with a sentence that says what is drawn. Bands and whiskers are 95 % intervals
over the repetitions. Nothing here writes a file.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, pairwise
from math import log
from typing import TYPE_CHECKING, Any, Literal

from downpour.experiments.figures.style import (
    LIGHT,
    WIDTH_INCHES,
    area,
    count_from_one,
    in_decades,
    keep_per_cent,
    series,
    styled,
    turned_where_crowded,
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
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

TIMELINES_MAX = 24
_INTERVALS = "are 95\u00a0% intervals over the repetitions"
_REPETITIONS_MIN = 3
"""The interval of two repetitions is so wide that it hides the rest; tables have it."""
_PANEL_INCHES = 2.3
_AXIS_INCHES = 0.86 * WIDTH_INCHES
_LEGEND_LETTERS = 30
_LEGEND_COLUMNS = 2
_DECADES_RATIO = 30
"""An axis of numbers this far apart is drawn in decades."""
_TICKS_APART = 1 / 14
"""Of an axis: nearer to each other, their labels touch."""
_TICKS_MAX = 12
_MARKS_MAX = 12
"""Of one line: more hide it."""
_BARS_WIDTH = 0.8
"""Of a cluster, where the next one is at a distance of 1."""
_SQUARES_MAX = 12
"""In a row: where there are more, none has room for its number."""
_TOP_POINTS = 7.5
_TOP_LETTER_POINTS = 0.62 * _TOP_POINTS

Shown = Measure | Literal["time"]
Part = Literal["outcome", "timeline", "resources"]
"""Of a page: what a subgrid came to, which worker trained what, and what its processes used."""
Look = dict[str, Any]
Dot = tuple[float, Estimate]
"""An estimate at a place of the x axis."""
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
    if any(len(runs) >= _REPETITIONS_MIN for _, runs in subgrid.measured):
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
        panel = f"{_spoken(subgrid.axes[0])}: {label(values[0])}" if faceted else ""
        line = _name(values[1:] if faceted else values), _by_epoch(runs, measure)
        panels.setdefault(panel, []).append(line)
    looks = _looks(_name(v[1:] if faceted else v) for v in subgrid.settings)
    with styled():
        figure, axes = _panels(len(panels))
        for axis, (title, lines) in zip(axes, panels.items(), strict=True):
            for name, points in lines:
                _draw_line(axis, points, looks[name])
            axis.set_title(title)
            axis.set_ylabel(measure.axis)
        if measure.is_share:
            keep_per_cent(axes[0])
        axes[-1].set_xlabel("epoch")
        count_from_one(axes[-1])
        drawn = {name for lines in panels.values() for name, _ in lines}
        shown = {name: look for name, look in looks.items() if name in drawn}
        _legend(figure, shown, subgrid.axes[1:] if faceted else subgrid.axes)
    return figure


def outcome_figure(subgrid: SubgridResult, measure: Shown) -> Figure:
    """Draw the outcome of each setting: lines along an axis of numbers, else grouped bars."""
    numeric = _numeric_axis(subgrid)
    ahead = max(numeric, 0)
    rest = [axis for place, axis in enumerate(subgrid.axes) if place != ahead]
    looks = _looks(_name(v[:ahead] + v[ahead + 1 :]) for v in subgrid.settings)
    with styled():
        figure, (axis,) = _panels(1)
        lines = _lines_along(subgrid, ahead, measure)
        shown = [values for values, _ in subgrid.measured]
        if numeric < 0:
            shown = [v for v in subgrid.settings if v in shown or v in subgrid.lost]
        places = {_place(subgrid, ahead, v): label(v[ahead]) for v in shown}
        bars = {place: lines[name] for place, name in enumerate(looks) if name in lines}
        if numeric >= 0:
            for name, points in lines.items():
                _draw_whiskers(axis, points, looks[name])
            _name_numbers(axis, places)
        else:
            _draw_bars(axis, bars, len(looks))
            _mark_lost(axis, subgrid, list(looks))
            _name_clusters(axis, places)
        axis.set_xlabel(_spoken(subgrid.axes[ahead]))
        axis.set_ylabel("training, s" if measure == "time" else f"final {measure.axis}")
        if measure == "time" or numeric < 0:
            low, high = axis.get_ylim()
            axis.set_ylim(min(0, 1.04 * low), 1.04 * high)
        if measure != "time" and measure.is_share:
            keep_per_cent(axis)
        if numeric < 0:
            _tell_heights(axis, bars, len(looks), len(places))
        _legend(figure, looks, rest, are_areas=numeric < 0)
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
        figure, (axis,) = _panels(1, inches=0.9 + 0.32 * len(rows))
        squares = axis.pcolormesh(shares, vmin=0, vmax=100, cmap="cividis", edgecolors="none")
        if count > _SQUARES_MAX:
            figure.colorbar(squares, ax=axis, label="accuracy, %", pad=0.02)
        else:
            for (row, column), share in np.ndenumerate(shares):
                ink = "#ffffff" if share < 55 else "#000000"
                text = "" if np.isnan(share) else f"{share:.0f}"
                axis.text(column + 0.5, row + 0.5, text, color=ink, ha="center", va="center")
        axis.set_yticks(np.arange(len(rows)) + 0.5, names)
        axis.set_ylabel(", ".join(map(_spoken, subgrid.axes)))
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
            name = _name(values[:ahead] + values[ahead + 1 :])
            lines.setdefault(name, []).append((_place(subgrid, ahead, values), estimate))
    return {name: sorted(dots, key=lambda dot: dot[0]) for name, dots in lines.items()}


def _place(subgrid: SubgridResult, ahead: int, values: Sequence[Any]) -> float:
    """Return where a setting stands on the x axis: at its number, or at its name's."""
    if _is_numeric(subgrid, subgrid.axes[ahead]):
        return float(values[ahead])
    return float(
        list(dict.fromkeys(label(v[ahead]) for v in subgrid.settings)).index(label(values[ahead]))
    )


def _estimate(runs: Sequence[RunResult], measure: Shown) -> Estimate | None:
    if measure == "time":
        return Estimate.of(run.result.train_seconds for run in runs)
    return Estimate.of(measure.shown(run.result.measured(measure.name)) for run in runs)


def _draw_line(axis: Axes, dots: Sequence[Dot], look: Look) -> None:
    """Draw a line with a band around it."""
    xs = [x for x, _ in dots]
    every = -(-len(dots) // _MARKS_MAX)
    means = [estimate.mean for _, estimate in dots]
    axis.plot(xs, means, markevery=every, clip_on=False, **look)  # at 100 % it is whole, too
    if any(map(_reach, (estimate for _, estimate in dots))):
        low = [estimate.mean - _reach(estimate) for _, estimate in dots]
        high = [estimate.mean + _reach(estimate) for _, estimate in dots]
        axis.fill_between(xs, low, high, color=look["color"], alpha=0.18, linewidth=0)


def _draw_whiskers(axis: Axes, dots: Sequence[Dot], look: Look) -> None:
    """Draw a line with a whisker at each of its few places."""
    means = [estimate.mean for _, estimate in dots]
    widths = [_reach(estimate) for _, estimate in dots]
    whiskers = widths if any(widths) else None
    axis.errorbar([x for x, _ in dots], means, whiskers, capsize=2.5, elinewidth=1.0, **look)


def _draw_bars(axis: Axes, bars: Mapping[int, Sequence[Dot]], count: int) -> None:
    """Draw clusters of `count` bars, each with its whisker; `bars` are by their places in one."""
    for place, x, estimate in _each(bars):
        middle = _middle(x, place, count)
        axis.bar(middle, estimate.mean, 0.92 * _BARS_WIDTH / count, **area(place))
        if reach := _reach(estimate):
            axis.errorbar(middle, estimate.mean, reach, color=LIGHT["ink"], elinewidth=1, capsize=2)


def _mark_lost(axis: Axes, subgrid: SubgridResult, names: Sequence[str]) -> None:
    """Put a cross in the place of each bar whose runs all failed; clusters are the first axis."""
    for values in subgrid.lost:
        middle = _middle(_place(subgrid, 0, values), names.index(_name(values[1:])), len(names))
        look: Look = {"color": LIGHT["failure"], "ha": "center", "va": "bottom"}
        axis.annotate("×", (middle, 0), (0, 1), textcoords="offset points", **look)


def _tell_heights(axis: Axes, bars: Mapping[int, Sequence[Dot]], count: int, clusters: int) -> None:
    """Write each mean above its bar and whisker; upright where the bars are narrow."""
    decimals = _decimals(estimate.mean for _, _, estimate in _each(bars))
    room = 72 * _AXIS_INCHES * _BARS_WIDTH / (count * clusters)
    if room < _TOP_POINTS:
        return
    top = axis.get_ylim()[1]
    look: Look = {"textcoords": "offset points", "ha": "center", "va": "bottom"}
    for place, x, estimate in _each(bars):
        text = f"{estimate.mean:.{decimals}f}"
        is_wide = len(text) * _TOP_LETTER_POINTS <= room
        at = _middle(x, place, count), min(estimate.mean + _reach(estimate), top)
        axis.annotate(text, at, (0, 3), rotation=0 if is_wide else 90, fontsize=_TOP_POINTS, **look)


def _each(bars: Mapping[int, Sequence[Dot]]) -> Iterator[tuple[int, float, Estimate]]:
    for place, dots in bars.items():
        for x, estimate in dots:
            yield place, x, estimate


def _middle(x: float, place: int, count: int) -> float:
    """Return where the bar at a place of a cluster stands."""
    return x + _BARS_WIDTH * ((place + 0.5) / count - 0.5)


def _decimals(means: Iterable[float]) -> int:
    """Return how many decimals numbers of this size need to be distinct."""
    most = max(means, default=0.0)
    return 3 if most < 1 else 2 if most < 10 else 1 if most < 1000 else 0


def _name_numbers(axis: Axes, places: Mapping[float, str]) -> None:
    """Mark an axis at the given numbers; it is logarithmic where they span decades."""
    numbers = sorted(places)
    if _suit_decades(numbers):
        in_decades(axis)
        axis.minorticks_off()
    if len(places) <= _TICKS_MAX:
        axis.set_xticks(list(places), list(places.values()))


def _suit_decades(numbers: Sequence[float]) -> bool:
    if len(numbers) < 2 or numbers[0] <= 0:
        return False
    low, high = numbers[0], numbers[-1]
    near = min(after - before for before, after in pairwise(numbers)) / (high - low)
    nearest = min(log(b / a) for a, b in pairwise(numbers)) / log(high / low)
    return high / low > _DECADES_RATIO or near < min(_TICKS_APART, nearest)


def _name_clusters(axis: Axes, places: Mapping[float, str]) -> None:
    names = list(places.values())
    axis.set_xlim(min(places) - 0.5, max(places) + 0.5)
    axis.set_xticks(list(places), names, **turned_where_crowded(names, _AXIS_INCHES))
    axis.grid(visible=False, axis="x")
    axis.tick_params(axis="x", length=0)


def _reach(estimate: Estimate) -> float:
    """Return how far a band or a whisker reaches; 0 where none is drawn."""
    return (estimate.half_width or 0.0) if estimate.count >= _REPETITIONS_MIN else 0.0


def _panels(count: int, inches: float = _PANEL_INCHES) -> tuple[Figure, list[Axes]]:
    """Make panels of one measure, which are compared: both of their axes are the same."""
    from matplotlib.figure import Figure

    size = WIDTH_INCHES, 0.5 + inches * count
    figure = Figure(figsize=size, layout="constrained")
    axes = figure.subplots(count, 1, sharex=True, sharey=True, squeeze=False)
    return figure, [row[0] for row in axes]


def _looks(names: Iterable[str]) -> dict[str, Look]:
    """Give every line its look, the same in all panels."""
    return {name: series(place) for place, name in enumerate(dict.fromkeys(names))}


def _legend(
    figure: Figure, looks: Mapping[str, Look], axes: Sequence[str], *, are_areas: bool = False
) -> None:
    """Put the legend below everything; none where there is but one line, or one bar a cluster."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    if len(looks) > 1:
        handles: list[Artist] = [
            Patch(**area(place)) if are_areas else Line2D([], [], **look)
            for place, look in enumerate(looks.values())
        ]
        figure.legend(
            handles,
            list(looks),
            title=", ".join(map(_spoken, axes)),
            loc="outside lower center",
            ncols=len(looks) if sum(map(len, looks)) < _LEGEND_LETTERS else _LEGEND_COLUMNS,
        )


def _name(values: Sequence[Any]) -> str:
    return ", ".join(map(label, values))


def _numeric_axis(subgrid: SubgridResult) -> int:
    """Return the place of the first axis that has several numbers on it; -1 where none has."""
    return next(
        (place for place, axis in enumerate(subgrid.axes) if _is_numeric(subgrid, axis)), -1
    )


def _is_numeric(subgrid: SubgridResult, axis: str) -> bool:
    """Whether an axis has several numbers on it; true and false are not numbers."""
    values = [values[subgrid.axes.index(axis)] for values in subgrid.settings]
    numbers = all(isinstance(v, int | float) and not isinstance(v, bool) for v in values)
    return numbers and len(set(values)) > 1


def _spoken(axis: str) -> str:
    return axis.replace("_", " ")
