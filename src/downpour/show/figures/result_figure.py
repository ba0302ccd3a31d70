"""Figures of one experiment or search: metrics, resources, splits; writes no file."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain, pairwise
from math import inf, nan, sqrt
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from downpour.base.states import LOSS
from downpour.core.splitters import ShardCounts
from downpour.record.record_lines import Sample
from downpour.record.result import Result
from downpour.record.result_parts import Measure, RoundResult, names_of
from downpour.record.study_result import Range, SearchResult, SearchRun, field_words, label, natural
from downpour.show.figures import style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_PANEL_INCHES = 2.0
_METRICS_MAX = 3
"""A screen shows no more than this many metrics together with the losses."""


def result_figure(result: Result) -> Figure:
    """Draw a result's first metrics by epoch, one panel each, and its losses in one below."""
    metrics = [
        Measure.of(name, (epoch.measured(name) for epoch in result.epochs), result.part)
        for name in names_of(epoch.metrics for epoch in result.epochs)[:_METRICS_MAX]
    ]
    with style.styled():
        figure = style.new_figure(style.WIDTH_INCHES, 0.5 + _PANEL_INCHES * (len(metrics) + 1))
        axes = figure.subplots(len(metrics) + 1, 1, sharex=True, squeeze=False)[:, 0]
        for axis, measure in zip(axes, metrics, strict=False):
            values = [measure.shown(epoch.measured(measure.name)) for epoch in result.epochs]
            _draw(axis, 0, result.epochs, values)
            axis.set_ylabel(measure.axis)
            if measure.is_share:
                style.keep_per_cent(axis)
        losses = {
            result.part: [epoch.test_loss for epoch in result.epochs],
            "training": [epoch.train_loss for epoch in result.epochs],
        }
        for place, (name, values) in enumerate(losses.items()):
            _draw(axes[-1], place, result.epochs, values, name)
        axes[-1].set_ylabel(LOSS)
        axes[-1].set_xlabel("epoch")
        axes[-1].legend()
        style.count_from_one(axes[-1])
    return figure


def _draw(
    axis: Axes,
    place: int,
    epochs: Sequence[RoundResult],
    values: Sequence[float | None],
    name: str = "",
) -> None:
    points = zip((epoch.epoch for epoch in epochs), values, strict=True)
    measured = [(x, y) for x, y in points if y is not None]
    xs, ys = [x for x, _ in measured], [y for _, y in measured]
    axis.plot(xs, ys, label=name, clip_on=False, **style.series(place))


_LINES_MAX = 12
_COLUMNS = 2
_GAP = 3.0
"""How many times the usual distance of two samples counts as a gap between them."""
_POINTS_MAX = 300
"""Maximum points of one line; readers can't distinguish more, and they make a page large."""
MEASURES: dict[str, Callable[[Sample], float]] = {
    "CPU, cores": lambda sample: sample.cpu_share,
    "memory, MB": lambda sample: sample.memory_bytes / 1e6,
    "threads": lambda sample: sample.threads,
    "I/O wait, %": lambda sample: 100 * sample.io_wait,
}


def measures_of(used: Mapping[str, Sequence[Sample]]) -> list[str]:
    """Name the measures worth drawing, because they are not 0 throughout.

    If no process has samples of two moments, return none: a single dot shows no change.
    """
    drawn = [used[worker] for worker in _drawn_workers(used)]
    if all(samples[0].at_seconds == samples[-1].at_seconds for samples in drawn):
        return []
    return [name for name, measure in MEASURES.items() if any(map(measure, chain(*drawn)))]


def resource_figure(used: Mapping[str, Sequence[Sample]]) -> Figure:
    """Draw CPU, memory, threads and I/O wait over time: a panel per measure, a line per process.

    Only the measures that `measures_of` names get a panel; it must name at least one. I/O wait is
    the machine's; the other measures are the process's own. A line breaks where samples are
    missing, because a process without a task sends none.
    """
    workers, shown = _drawn_workers(used), measures_of(used)
    with style.styled():
        columns = min(len(shown), _COLUMNS)
        rows = -(-len(shown) // columns)
        figure = style.new_figure(style.WIDE_INCHES, 0.8 + 1.6 * rows)
        panels = list(figure.subplots(rows, columns, sharex=True, squeeze=False).flat)
        axes = panels[: len(shown)]
        for unused in panels[len(shown) :]:
            unused.remove()
        for axis, name in zip(axes, shown, strict=True):
            for place, worker in enumerate(workers):
                line = used[worker][:: -(-len(used[worker]) // _POINTS_MAX)]
                look = {**style.series(place), "marker": ".", "markersize": 4.5, "linewidth": 1.1}
                look["clip_on"] = False  # keeps the full width of lines along the bottom
                times, values, alone = _broken(line, MEASURES[name])
                axis.plot(times, values, label=worker, markevery=alone, **look)
            axis.set_ylabel(name)
            axis.set_ylim(0, max(1.0, axis.get_ylim()[1]))
            axis.set_xlim(left=0)
        figure.align_ylabels(axes)
        for axis in axes[-columns:]:  # the lowest panel of each column
            axis.set_xlabel("seconds since the first assignment")
            axis.tick_params(labelbottom=True)
        handles, names = axes[0].get_legend_handles_labels()
        legend = figure.legend(handles, names, loc="outside lower center", ncols=6)
        for mark in legend.get_lines():
            mark.set_marker("")
    return figure


def _drawn_workers(used: Iterable[str]) -> list[str]:
    return sorted(used, key=natural)[:_LINES_MAX]


def _broken(
    samples: Sequence[Sample], measure: Callable[[Sample], float]
) -> tuple[list[float], list[float], list[int]]:
    """Return the points of a line, with NaN in its gaps, and the indices of lone points."""
    times = [sample.at_seconds for sample in samples]
    apart = [after - before for before, after in pairwise(times)]
    widest = _GAP * median(apart) if apart else inf
    points: list[tuple[float, float]] = []
    alone = []
    for place, sample in enumerate(samples):
        begins = place == 0 or apart[place - 1] > widest
        if begins and place:
            points.append((times[place], nan))
        if begins and (place == len(apart) or apart[place] > widest):
            alone.append(len(points))
        points.append((times[place], measure(sample)))
    return [time for time, _ in points], [value for _, value in points], alone


_FIELD_INCHES = 1.9
_LEGEND_INCHES = 0.3
_ROOM = 0.5
"""The free room on both sides of the choices."""
_AXIS_INCHES = 0.43 * style.WIDTH_INCHES
_DECADES_RATIO = 30
_LOOKS: dict[str, dict[str, Any]] = {
    "finished": {"marker": "o", "color": style.LIGHT["series-1"]},
    "pruned": {"marker": "^", "facecolors": "none", "edgecolors": style.LIGHT["muted"]},
    "best": {"marker": "D", "color": style.LIGHT["series-2"]},
    "failed": {"marker": "x", "color": style.LIGHT["failure"]},
}
_MARK_POINTS_SQUARED = 16

Place = Callable[[SearchRun], float]


def search_figure(search: SearchResult) -> Figure:
    """Draw the panels; at least one run must have a value.

    A pruned run appears at the value that it had when it ended. A failed run has no value, and
    appears at the bottom.
    """
    rows = -(-len(search.fields) // _COLUMNS)
    height = _FIELD_INCHES * (1 + rows) + _LEGEND_INCHES
    with style.styled("search"):
        figure = style.new_figure(style.WIDTH_INCHES, height)
        grid = figure.add_gridspec(1 + rows, _COLUMNS)
        first = figure.add_subplot(grid[0, :])
        _draw_runs(first, search, lambda run: run.number)
        _draw_best(first, search)
        first.set_xlabel("run")
        first.set_ylabel(search.measure.axis)
        style.count_from_one(first)
        for place, field in enumerate(search.fields):
            row, column = divmod(place, _COLUMNS)
            axis = figure.add_subplot(grid[1 + row, column], sharey=first)
            _draw_field(axis, search, field)
            if column == 0:
                axis.set_ylabel(search.measure.axis)
            else:
                axis.tick_params(labelleft=False)
        if search.measure.is_share:
            style.keep_per_cent(first)
        figure.legend(*first.get_legend_handles_labels(), loc="outside lower center", ncols=5)
    return figure


def _draw_field(axis: Axes, search: SearchResult, name: str) -> None:
    """Draw the values by one field: at its number, or above the name of its choice."""
    field = search.fields[name]
    axis.set_xlabel(field_words(name))
    if isinstance(field, Range):
        if field.log:
            style.in_decades(axis)
        _draw_runs(axis, search, lambda run: float(run.values[name]))
        if field.log:
            _keep_ticks_apart(axis)
        return
    choices = list(field.values)
    _draw_runs(axis, search, lambda run: choices.index(run.values[name]))
    names = [label(choice) for choice in choices]
    axis.set_xticks(range(len(choices)), names, **style.turned_where_crowded(names, _AXIS_INCHES))
    axis.set_xlim(-_ROOM, len(choices) - 1 + _ROOM)


def _keep_ticks_apart(axis: Axes) -> None:
    """Name the decades of a logarithmic axis; if it has hardly two, also name 2 and 5 between."""
    from matplotlib.ticker import LogLocator, NullFormatter

    low, high = axis.get_xlim()
    if high / low < _DECADES_RATIO:
        axis.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axis.xaxis.set_minor_formatter(NullFormatter())


def _draw_runs(axis: Axes, search: SearchResult, place: Place) -> None:
    kinds: dict[str, list[SearchRun]] = {"finished": [], "pruned": [], "best": []}
    for run in search.runs:
        kind: str = "best" if run is search.best else run.state
        if kind in kinds and run.value is not None:
            kinds[kind].append(run)
    for kind, runs in kinds.items():
        if runs:
            heights = [search.measure.shown(run.value) or 0.0 for run in runs]
            across = [place(run) for run in runs]
            look = {"s": _MARK_POINTS_SQUARED, "zorder": 3, "clip_on": False, **_LOOKS[kind]}
            axis.scatter(across, heights, label=kind, **look)
    across = [place(run) for run in search.runs if run.state == "failed"]
    if across:
        foot: dict[str, Any] = {"transform": axis.get_xaxis_transform(), "clip_on": False}
        look = {"s": _MARK_POINTS_SQUARED, "label": "failed", "zorder": 3, **_LOOKS["failed"]}
        axis.scatter(across, [0.0] * len(across), **foot, **look)
        axis.update_datalim([(x, 0.0) for x in across], updatey=False)
        axis.autoscale_view(scaley=False)


def _draw_best(axis: Axes, search: SearchResult) -> None:
    so_far = search.best_so_far
    if so_far:
        heights = [search.measure.shown(value) or 0.0 for _, value in so_far]
        look: dict[str, Any] = {"color": style.LIGHT["series-2"], "linewidth": 1.2}
        axis.step([n for n, _ in so_far], heights, where="post", label="best so far", **look)


SHARDS_MAX = 40
CLASSES_MAX = 20
_BARS_INCHES = 0.55
_LANE_INCHES = 0.155
_TITLE_INCHES = 0.5
_FOOT_INCHES = 0.65
_AXIS_POINTS = 0.84 * style.WIDTH_INCHES * 72
_FILLED = 0.92
"""The width of the largest dot, as a share of the distance to the next dot."""
_NAMED_MAX = 10
"""Maximum names on an axis; with more numbers, we name them at intervals."""

Counts = npt.NDArray[np.float64]


def split_figure(cuts: Sequence[ShardCounts]) -> Figure:
    """Draw the first shards and classes of each cut; all are cuts of the same data.

    Above, a bar shows each shard's examples. Below, a dot stands for each shard and class; its area
    is the number of examples. So the figure needs no colors, and looks the same with any number of
    classes. All panels of a figure have one scale.
    """
    counts = [_shown(cut) for cut in cuts]
    lanes = counts[0].shape[1]
    heights = [_BARS_INCHES, _LANE_INCHES * lanes] if lanes else [_BARS_INCHES]
    height = _FOOT_INCHES + len(cuts) * (_TITLE_INCHES + sum(heights))
    largest = max((float(each.max()) for each in counts if each.size), default=0.0)
    tallest = max(int(cut.sizes[:SHARDS_MAX].max()) for cut in cuts)
    with style.styled("splits"):
        figure = style.new_figure(style.WIDTH_INCHES, height)
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
    axis.bar(range(len(sizes)), sizes, width=0.7, color=style.LIGHT["shade"], linewidth=0)
    axis.set_ylim(0, 1.05 * tallest)
    axis.set_ylabel("examples", fontsize=8)
    axis.locator_params(axis="y", nbins=2)
    axis.grid(visible=False, axis="x")
    axis.tick_params(axis="x", length=0)
    distance = f", mean distance {cut.mean_distance:.2f}" if cut.classes else ""
    title = f"{cut.split}: sizes max/min {cut.unevenness:,.2f}{distance}"
    axis.set_title(title, fontsize=9)


def _draw_classes(axis: Axes, cut: ShardCounts, counts: Counts, largest: float) -> None:
    shards, lanes = np.nonzero(counts)
    areas = _diameter(counts.shape) ** 2 * counts[shards, lanes] / largest
    axis.scatter(shards, lanes, s=areas, color=style.LIGHT["series-1"], linewidth=0)
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
    look: dict[str, Any] = {"marker": "o", "linestyle": "", "color": style.LIGHT["series-1"]}
    amounts = [amount for amount in (whole, whole // 4) if amount]
    handles = [
        Line2D([], [], markersize=diameter * sqrt(amount / largest), markeredgewidth=0, **look)
        for amount in amounts
    ]
    names = [f"{amount:,} example{'s' * (amount != 1)}" for amount in amounts]
    figure.legend(handles, names, loc="outside lower center", ncols=len(handles))
