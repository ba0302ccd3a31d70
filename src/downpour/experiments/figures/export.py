"""Exports figures as PNG and SVG whose bytes and text do not change from run to run."""

from __future__ import annotations

import io
import re
from pathlib import Path
from typing import TYPE_CHECKING

from downpour.experiments.figures.style import LIGHT, PNG_DPI, styled

if TYPE_CHECKING:
    from matplotlib.figure import Figure

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
    inner = _COORDINATES.sub(_rounded, inner)
    for name, colour in LIGHT.items():
        inner = inner.replace(colour, f"var(--{name})")
    return inner


def _rounded(coordinates: re.Match[str]) -> str:
    return _DIGITS_BEYOND_HUNDREDTHS.sub(r"\1", coordinates[0]).replace("\n", "")
