"""A figure of accuracy, with one line per act, by epochs or by seconds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from downpour.experiments.figures.style import WIDTH_INCHES, keep_per_cent, series, styled

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def lines_figure(lines: Mapping[str, Sequence[tuple[float, float]]], along: str) -> Figure:
    """Draw accuracy in percent by epochs or seconds, a line of points for each title."""
    from matplotlib.figure import Figure

    with styled():
        figure = Figure(figsize=(WIDTH_INCHES, 3.0), layout="constrained")
        axis = figure.subplots()
        for place, (title, points) in enumerate(lines.items()):
            xs, ys = [x for x, _ in points], [y for _, y in points]
            axis.plot(xs, ys, label=title, clip_on=False, **series(place))
        axis.set_xlabel(along)
        axis.set_ylabel("test accuracy, %")
        axis.set_xlim(left=0)
        keep_per_cent(axis)
        figure.legend(loc="outside lower center", ncols=len(lines))
    return figure
