"""Lines, whiskers, bars and legends: the drawing tools of all figures."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from math import log
from typing import TYPE_CHECKING, Any

from downpour.record.result_parts import Estimate
from downpour.record.study_result import SubgridResult, label
from downpour.show.figures.style import (
    LIGHT,
    WIDTH_INCHES,
    area,
    in_decades,
    new_figure,
    series,
    turned_where_crowded,
)

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

REPETITIONS_MIN = 3
"""The interval of two repetitions is wide enough to hide everything else; tables have it."""
PANEL_INCHES = 2.3
AXIS_INCHES = 0.86 * WIDTH_INCHES
_LEGEND_LETTERS = 30
_LEGEND_COLUMNS = 2
_DECADES_RATIO = 30
"""We draw an axis in decades if its numbers are this far apart."""
_TICKS_APART = 1 / 14
"""The share of an axis between two ticks; labels that are closer touch."""
_TICKS_MAX = 12
_MARKS_MAX = 12
"""Maximum marks on one line; more would hide it."""
_BARS_WIDTH = 0.8
"""The width of a cluster of bars, if clusters are 1 apart."""
_TOP_POINTS = 7.5
_TOP_LETTER_POINTS = 0.62 * _TOP_POINTS
Look = dict[str, Any]
Dot = tuple[float, Estimate]
"""An estimate at a position on the x axis."""


def place_of(subgrid: SubgridResult, ahead: int, values: Sequence[Any]) -> float:
    """Return a setting's position on the x axis: its number, or the position of its name."""
    if is_numeric(subgrid, subgrid.axes[ahead]):
        return float(values[ahead])
    return float(
        list(dict.fromkeys(label(v[ahead]) for v in subgrid.settings)).index(label(values[ahead]))
    )


def draw_line(axis: Axes, dots: Sequence[Dot], look: Look) -> None:
    """Draw a line with a band around it."""
    xs = [x for x, _ in dots]
    every = -(-len(dots) // _MARKS_MAX)
    means = [estimate.mean for _, estimate in dots]
    axis.plot(xs, means, markevery=every, clip_on=False, **look)  # at 100 % it stays whole, too
    if any(map(reach_of, (estimate for _, estimate in dots))):
        low = [estimate.mean - reach_of(estimate) for _, estimate in dots]
        high = [estimate.mean + reach_of(estimate) for _, estimate in dots]
        axis.fill_between(xs, low, high, color=look["color"], alpha=0.18, linewidth=0)


def draw_whiskers(axis: Axes, dots: Sequence[Dot], look: Look) -> None:
    """Draw a line with a whisker at each of its few places."""
    means = [estimate.mean for _, estimate in dots]
    widths = [reach_of(estimate) for _, estimate in dots]
    whiskers = widths if any(widths) else None
    axis.errorbar([x for x, _ in dots], means, whiskers, capsize=2.5, elinewidth=1.0, **look)


def draw_bars(axis: Axes, bars: Mapping[int, Sequence[Dot]], count: int) -> None:
    """Draw clusters of `count` bars with whiskers; `bars` are by their places in a cluster."""
    for place, x, estimate in _each(bars):
        middle = _middle(x, place, count)
        axis.bar(middle, estimate.mean, 0.92 * _BARS_WIDTH / count, **area(place))
        if reach := reach_of(estimate):
            axis.errorbar(middle, estimate.mean, reach, color=LIGHT["ink"], elinewidth=1, capsize=2)


def mark_lost(axis: Axes, subgrid: SubgridResult, names: Sequence[str]) -> None:
    """Put a cross in place of each bar whose runs all failed; clusters are the first axis."""
    for values in subgrid.lost:
        middle = _middle(place_of(subgrid, 0, values), names.index(name_of(values[1:])), len(names))
        look: Look = {"color": LIGHT["failure"], "ha": "center", "va": "bottom"}
        axis.annotate("×", (middle, 0), (0, 1), textcoords="offset points", **look)


def tell_heights(axis: Axes, bars: Mapping[int, Sequence[Dot]], count: int, clusters: int) -> None:
    """Write each mean above its bar and whisker; vertically if the bars are narrow."""
    decimals = _decimals(estimate.mean for _, _, estimate in _each(bars))
    room = 72 * AXIS_INCHES * _BARS_WIDTH / (count * clusters)
    if room < _TOP_POINTS:
        return
    top = axis.get_ylim()[1]
    look: Look = {"textcoords": "offset points", "ha": "center", "va": "bottom"}
    for place, x, estimate in _each(bars):
        text = f"{estimate.mean:.{decimals}f}"
        is_wide = len(text) * _TOP_LETTER_POINTS <= room
        at = _middle(x, place, count), min(estimate.mean + reach_of(estimate), top)
        axis.annotate(text, at, (0, 3), rotation=0 if is_wide else 90, fontsize=_TOP_POINTS, **look)


def _each(bars: Mapping[int, Sequence[Dot]]) -> Iterator[tuple[int, float, Estimate]]:
    for place, dots in bars.items():
        for x, estimate in dots:
            yield place, x, estimate


def _middle(x: float, place: int, count: int) -> float:
    """Return the center of the bar at a place of a cluster."""
    return x + _BARS_WIDTH * ((place + 0.5) / count - 0.5)


def _decimals(means: Iterable[float]) -> int:
    """Return how many decimals make numbers of this size distinct."""
    most = max(means, default=0.0)
    return 3 if most < 1 else 2 if most < 10 else 1 if most < 1000 else 0


def name_numbers(axis: Axes, places: Mapping[float, str]) -> None:
    """Mark an axis at the given numbers; make it logarithmic if they span decades."""
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


def name_clusters(axis: Axes, places: Mapping[float, str]) -> None:
    """Name clusters of bars below the axis."""
    names = list(places.values())
    axis.set_xlim(min(places) - 0.5, max(places) + 0.5)
    axis.set_xticks(list(places), names, **turned_where_crowded(names, AXIS_INCHES))
    axis.grid(visible=False, axis="x")
    axis.tick_params(axis="x", length=0)


def reach_of(estimate: Estimate) -> float:
    """Return how far a band or a whisker reaches; 0 if we draw none."""
    return (estimate.half_width or 0.0) if estimate.count >= REPETITIONS_MIN else 0.0


def panels_of(count: int, inches: float = PANEL_INCHES) -> tuple[Figure, list[Axes]]:
    """Make panels of one measure with equal axes, so that readers can compare them."""
    figure = new_figure(WIDTH_INCHES, 0.5 + inches * count)
    axes = figure.subplots(count, 1, sharex=True, sharey=True, squeeze=False)
    return figure, [row[0] for row in axes]


def looks_of(names: Iterable[str]) -> dict[str, Look]:
    """Give every line its look, which is the same in all panels."""
    return {name: series(place) for place, name in enumerate(dict.fromkeys(names))}


def legend(
    figure: Figure, looks: Mapping[str, Look], axes: Sequence[str], *, are_areas: bool = False
) -> None:
    """Put the legend below everything; leave it out for a single line, or one bar per cluster."""
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
            title=", ".join(map(spoken, axes)),
            loc="outside lower center",
            ncols=len(looks) if sum(map(len, looks)) < _LEGEND_LETTERS else _LEGEND_COLUMNS,
        )


def name_of(values: Sequence[Any]) -> str:
    """Name a setting by its values."""
    return ", ".join(map(label, values))


def is_numeric(subgrid: SubgridResult, axis: str) -> bool:
    """Whether an axis has several numbers; true and false are not numbers."""
    values = [values[subgrid.axes.index(axis)] for values in subgrid.settings]
    numbers = all(isinstance(v, int | float) and not isinstance(v, bool) for v in values)
    return numbers and len(set(values)) > 1


def spoken(axis: str) -> str:
    """Return an axis as people say it."""
    return axis.replace("_", " ")
