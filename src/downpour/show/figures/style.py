"""The figures' style, their lines, bars and legends, and how a figure leaves the process.

We draw figures in the light colors. Every color has a name, so that a page can replace it with a
dark one. The tests measure that each color stands out from its background, and from the other
colors as color-blind people see them. Marks, dashes and hatches differ too, so that nothing depends
on color alone.
"""

from __future__ import annotations

import io
import re
from base64 import b64encode
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from itertools import pairwise
from math import log
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from downpour.record.result_parts import Estimate
from downpour.record.study_result import SubgridResult, field_words, label

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

LIGHT = {
    "paper": "#fdfdfc",
    "ink": "#22262b",
    "muted": "#636a73",
    "line": "#d5d8dc",
    "shade": "#b9bec5",
    "series-1": "#0b6fb8",
    "series-2": "#c2570c",
    "series-3": "#0a8563",
    "series-4": "#b0478c",
    "series-5": "#8a6d00",
    "series-6": "#4a4f9c",
    "failure": "#c21f30",
}
DARK = {
    "paper": "#16191d",
    "ink": "#e8eaed",
    "muted": "#a2a9b2",
    "line": "#3a4048",
    "shade": "#5b636d",
    "series-1": "#5fb2f2",
    "series-2": "#ff9d57",
    "series-3": "#3fc99c",
    "series-4": "#f08fcb",
    "series-5": "#dcc04a",
    "series-6": "#a9aef5",
    "failure": "#ff7b86",
}
SERIES = tuple(LIGHT[name] for name in LIGHT if name.startswith("series-"))
MARKS = ("o", "s", "^", "D", "v", "P")
DASHES: tuple[Any, ...] = ("-", (0, (5, 2)), (0, (1.5, 1.5)), (0, (5, 1.5, 1.5, 1.5)), "-", "--")
HATCHES = ("", "", "////", "...", "xxx", "---")
"""Hatches of areas, because the color-blind can only tell the first two colors apart easily."""

WIDTH_INCHES = 5.0
"""As wide as a phone can show without small letters."""
WIDE_INCHES = 10.5
"""As wide as a page on a desktop, or a landscape A4 sheet, for figures over time."""
PNG_DPI = 200
_LETTERS_PER_INCH = 12

_SETTINGS: dict[str, Any] = {
    "figure.facecolor": LIGHT["paper"],
    "savefig.facecolor": LIGHT["paper"],
    "axes.facecolor": "none",
    "axes.edgecolor": LIGHT["muted"],
    "axes.labelcolor": LIGHT["ink"],
    "axes.titlesize": 10,
    "axes.titlecolor": LIGHT["ink"],
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": LIGHT["line"],
    "grid.linewidth": 0.6,
    "text.color": LIGHT["ink"],
    "xtick.color": LIGHT["muted"],
    "ytick.color": LIGHT["muted"],
    "xtick.labelcolor": LIGHT["ink"],
    "ytick.labelcolor": LIGHT["ink"],
    "legend.frameon": False,
    "legend.fontsize": 9,
    # Users choose names. A name with two dollar signs is no formula, and may not even be a valid
    # one.
    "text.parse_math": False,
    "font.size": 9.5,
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    "lines.linewidth": 1.6,
    "lines.markersize": 4.5,
    "hatch.linewidth": 0.8,
    "svg.fonttype": "none",
}


@contextmanager
def styled(salt: str = "") -> Iterator[None]:
    """Draw and save in this style; `salt` keeps the inner names of two SVGs apart."""
    import matplotlib as mpl

    settings: Any = {**_SETTINGS, "svg.hashsalt": f"downpour-{salt}"}
    with mpl.rc_context(settings):
        yield


def series(place: int) -> dict[str, Any]:
    """Return the look of the line at an index; after six, lines differ only in dashes."""
    return {
        "color": SERIES[place % len(SERIES)],
        "marker": MARKS[place % len(MARKS)],
        "linestyle": DASHES[(place + place // len(SERIES)) % len(DASHES)],
    }


def area(place: int) -> dict[str, Any]:
    """Return the look of the bar at an index; the edge's color also draws its hatches."""
    return {
        "facecolor": SERIES[place % len(SERIES)],
        "edgecolor": LIGHT["paper"],
        "hatch": HATCHES[place % len(HATCHES)],
        "linewidth": 0,
    }


def turned_where_crowded(names: Sequence[str], inches: float) -> dict[str, Any]:
    """Return the rotation of names along an axis of this width, if they would touch otherwise."""
    room = _LETTERS_PER_INCH * inches / max(1, len(names))
    if all((len(one) + len(other)) / 2 + 1 <= room for one, other in pairwise(names)):
        return {}
    return {"rotation": 20, "ha": "right", "rotation_mode": "anchor"}


def in_decades(axis: Axes, which: Literal["x", "y"] = "x") -> None:
    """Make an axis logarithmic, with numbers as a person types them: 0.001, 1e-05."""
    from matplotlib.ticker import StrMethodFormatter

    axis.set(**{f"{which}scale": "log"})
    getattr(axis, f"{which}axis").set_major_formatter(StrMethodFormatter("{x:g}"))


def keep_per_cent(axis: Axes) -> None:
    """Cut off any part of a margin or an interval that no share could reach."""
    low, high = axis.get_ylim()
    axis.set_ylim(max(low, 0), min(high, 100))


def count_from_one(axis: Axes) -> None:
    """Let an axis name only whole numbers, and none below 1."""
    from matplotlib.ticker import MaxNLocator

    whole = MaxNLocator(integer=True, min_n_ticks=1, steps=[1, 2, 5, 10])
    axis.xaxis.set_major_locator(whole)
    axis.set_xlim(left=max(0.5, axis.get_xlim()[0]))


def variables(colours: dict[str, str]) -> str:
    """Write colors as CSS custom properties."""
    return " ".join(f"--{name}: {colour};" for name, colour in colours.items())


_DPI = 110
"""The resolution in a notebook: as wide as its text, on a fine screen."""


def new_figure(width_inches: float, height_inches: float) -> Figure:
    """Return an empty figure of this size, in the layout that leaves room for every label."""
    return _shown_figure()(figsize=(width_inches, height_inches), layout="constrained")


@cache
def _shown_figure() -> type[Figure]:
    """Return the class; we must not import its base before someone needs it."""
    from matplotlib.figure import Figure as Base

    class ShownFigure(Base):
        """A figure that draws its own image for a notebook.

        IPython can show figures only after someone has imported pyplot, which changes global
        settings.
        """

        def _repr_html_(self) -> str:
            file = io.BytesIO()
            self.savefig(file, format="png", dpi=_DPI)
            source = f"data:image/png;base64,{b64encode(file.getvalue()).decode()}"
            return f'<img alt="figure" style="max-width: 100%" src="{source}">'

    return ShownFigure


_COORDINATES = re.compile(r' (?:d|x|y)="[^"]*"')
_DIGITS_BEYOND_HUNDREDTHS = re.compile(r"(\.\d\d)\d+")
# Matplotlib names every group of shapes; names of several figures on a page would clash.
_GROUP_NAMES = re.compile(r'<g id="[^"]*"')


def to_png(figure: Figure) -> bytes:
    """Draw a figure as pixels, fine enough for print."""
    file = io.BytesIO()
    with styled():
        figure.savefig(file, format="png", dpi=PNG_DPI, metadata={"Software": None})
    return file.getvalue()


def to_svg(figure: Figure, name: str) -> str:
    """Draw a figure as SVG, keeping its letters as text."""
    file = io.StringIO()
    with styled(name):
        figure.savefig(file, format="svg", metadata={"Date": None, "Creator": None})
    return file.getvalue()


def written(figure: Figure, path: Path) -> bytes:
    """Return the content of a figure's file: SVG if its name ends with .svg, otherwise PNG."""
    svg = path.suffix == ".svg"
    return to_svg(figure, path.stem).encode() if svg else to_png(figure)


def for_page(svg: str) -> str:
    """Turn an SVG file into a part of a page whose colors are the page's own variables.

    We round coordinates, in points, to hundredths: that is invisible and makes the file a fifth
    smaller. We leave out the background, so that the page shows through.
    """
    inner = svg[svg.index("<svg") :]
    inner = inner.replace(f"fill: {LIGHT['paper']}", "fill: none", 1)
    inner = re.sub(r"<metadata>.*?</metadata>", "", inner, flags=re.DOTALL)
    inner = _GROUP_NAMES.sub("<g", inner)
    inner = _COORDINATES.sub(
        lambda found: _DIGITS_BEYOND_HUNDREDTHS.sub(r"\1", found[0]).replace("\n", ""), inner
    )
    for name, colour in LIGHT.items():
        inner = inner.replace(colour, f"var(--{name})")
    return inner


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
    highest = max((estimate.mean for _, _, estimate in _each(bars)), default=0.0)
    # As many as make numbers of this size distinct.
    decimals = 3 if highest < 1 else 2 if highest < 10 else 1 if highest < 1000 else 0
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
            title=", ".join(map(field_words, axes)),
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
