"""Draws how splits cut the training data, with one panel per split.

Above, a bar shows each shard's examples. Below, a dot stands for each shard and class; its area is
the number of examples. So the figure needs no colors, and looks the same with any number of
classes. All panels of a figure have one scale. Nothing here writes a file.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from downpour.core.splitters.cut import ShardCounts
from downpour.experiments.figures.style import LIGHT, WIDTH_INCHES, styled

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SHARDS_MAX = 40
CLASSES_MAX = 20
_BARS_INCHES = 0.55
_LANE_INCHES = 0.155
_TITLE_INCHES = 0.5
_FOOT_INCHES = 0.65
_AXIS_POINTS = 0.84 * WIDTH_INCHES * 72
_FILLED = 0.92
"""The width of the largest dot, as a share of the distance to the next dot."""
_NAMED_MAX = 10
"""Maximum names on an axis; with more numbers, we name them at intervals."""

Counts = npt.NDArray[np.float64]


def split_figure(cuts: Sequence[ShardCounts]) -> Figure:
    """Draw the first shards and classes of each cut; all are cuts of the same data."""
    from matplotlib.figure import Figure

    counts = [_shown(cut) for cut in cuts]
    lanes = counts[0].shape[1]
    heights = [_BARS_INCHES, _LANE_INCHES * lanes] if lanes else [_BARS_INCHES]
    height = _FOOT_INCHES + len(cuts) * (_TITLE_INCHES + sum(heights))
    largest = max((float(one.max()) for one in counts if one.size), default=0.0)
    tallest = max(int(cut.sizes[:SHARDS_MAX].max()) for cut in cuts)
    with styled("splits"):
        figure = Figure(figsize=(WIDTH_INCHES, height), layout="constrained")
        axes = figure.subplots(
            len(heights) * len(cuts),
            sharex=True,
            squeeze=False,
            gridspec_kw={"height_ratios": heights * len(cuts)},
        )[:, 0]
        for place, (cut, shown) in enumerate(zip(cuts, counts, strict=True)):
            bars, *dots = axes[place * len(heights) : (place + 1) * len(heights)]
            _draw_sizes(bars, cut, tallest)
            for axis in dots:
                _draw_classes(axis, cut, shown, largest)
        _name_shards(axes[-1], len(cuts[0].sizes))
        if lanes:
            _draw_key(figure, largest, _diameter(counts[0].shape))
    return figure


def _shown(cut: ShardCounts) -> Counts:
    """Return the counts to draw, shape (shards, lanes); the last lane is the mean of the others."""
    counts = cut.by_class[:SHARDS_MAX].astype(np.float64)
    if cut.classes <= CLASSES_MAX:
        return counts
    others = counts[:, CLASSES_MAX:].mean(axis=1, keepdims=True)
    return np.hstack([counts[:, :CLASSES_MAX], others])


def _draw_sizes(axis: Axes, cut: ShardCounts, tallest: int) -> None:
    sizes = cut.sizes[:SHARDS_MAX]
    axis.bar(range(len(sizes)), sizes, width=0.7, color=LIGHT["shade"], linewidth=0)
    axis.set_ylim(0, 1.05 * tallest)
    axis.set_ylabel("examples", fontsize=8)
    axis.locator_params(axis="y", nbins=2)
    axis.grid(visible=False, axis="x")
    axis.tick_params(axis="x", length=0)
    axis.set_title(_title(cut), fontsize=9)


def _title(cut: ShardCounts) -> str:
    words = f"{cut.split}: sizes max/min {cut.unevenness:,.2f}"
    return f"{words}, mean distance {cut.mean_distance:.2f}" if cut.classes else words


def _draw_classes(axis: Axes, cut: ShardCounts, counts: Counts, largest: float) -> None:
    shards, lanes = np.nonzero(counts)
    areas = _diameter(counts.shape) ** 2 * counts[shards, lanes] / largest
    axis.scatter(shards, lanes, s=areas, color=LIGHT["series-1"], linewidth=0)
    axis.set_ylim(counts.shape[1] - 0.4, -0.6)
    axis.grid(visible=False)
    axis.tick_params(length=0)
    every = 1 if counts.shape[1] <= _NAMED_MAX else 2
    names = {lane: str(lane) for lane in range(0, min(cut.classes, CLASSES_MAX), every)}
    if cut.classes > CLASSES_MAX:
        names[CLASSES_MAX] = "others"
    axis.set_yticks(list(names), list(names.values()), fontsize=8)
    left_out = cut.classes - CLASSES_MAX
    axis.set_ylabel(f"class; others: mean of {left_out}" if left_out > 0 else "class", fontsize=8)


def _diameter(shape: tuple[int, ...]) -> float:
    """Return the diameter of the largest dot in points, so that neighbors do not touch."""
    return _FILLED * min(72 * _LANE_INCHES, _AXIS_POINTS / shape[0])


def _name_shards(axis: Axes, shards: int) -> None:
    from matplotlib.ticker import MaxNLocator

    shown = min(shards, SHARDS_MAX)
    axis.set_xlim(-0.6, shown - 0.4)
    axis.xaxis.set_major_locator(MaxNLocator(nbins=_NAMED_MAX, integer=True, min_n_ticks=1))
    axis.set_xlabel("shard" if shown == shards else f"shard: the first {shown} of {shards:,}")


def _draw_key(figure: Figure, largest: float, diameter: float) -> None:
    """Explain how many examples a dot stands for: the largest, and one of a quarter of them."""
    from matplotlib.lines import Line2D

    whole = round(largest)
    look: dict[str, Any] = {"marker": "o", "linestyle": "", "color": LIGHT["series-1"]}
    amounts = [amount for amount in (whole, whole // 4) if amount]
    handles = [
        Line2D([], [], markersize=diameter * sqrt(amount / largest), markeredgewidth=0, **look)
        for amount in amounts
    ]
    names = [f"{amount:,} example{'s' * (amount != 1)}" for amount in amounts]
    figure.legend(handles, names, loc="outside lower center", ncols=len(handles))
