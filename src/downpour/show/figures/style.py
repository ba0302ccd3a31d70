"""The figures' style, and how a figure leaves the process.

We draw figures in the light colors. Every color has a name, so that a page can replace it with a
dark one. The tests measure that each color stands out from its background, and from the other
colors as color-blind people see them. Marks, dashes and hatches differ too, so that nothing depends
on color alone.
"""

from __future__ import annotations

import io
import re
from base64 import b64encode
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
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
