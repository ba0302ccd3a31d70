"""The figure of a search: its goal by run, with the best so far, and its goal by each field.

A pruned run appears at the value that it had when it ended. A failed run has no value, and appears
at the bottom. Nothing here writes a file.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from downpour.experiments.figures.style import (
    LIGHT,
    WIDTH_INCHES,
    count_from_one,
    in_decades,
    keep_per_cent,
    styled,
    turned_where_crowded,
)
from downpour.experiments.reading.search_result import SearchField, SearchResult, SearchRun
from downpour.experiments.reading.study_result import label

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_COLUMNS = 2
_PANEL_INCHES = 1.9
_LEGEND_INCHES = 0.3
_ROOM = 0.5
"""The free room on both sides of the choices."""
_AXIS_INCHES = 0.43 * WIDTH_INCHES
_DECADES_RATIO = 30
_LOOKS: dict[str, dict[str, Any]] = {
    "finished": {"marker": "o", "color": LIGHT["series-1"]},
    "pruned": {"marker": "^", "facecolors": "none", "edgecolors": LIGHT["muted"]},
    "best": {"marker": "D", "color": LIGHT["series-2"]},
    "failed": {"marker": "x", "color": LIGHT["failure"]},
}
_MARK_POINTS_SQUARED = 16

Place = Callable[[SearchRun], float]


def search_figure(search: SearchResult) -> Figure:
    """Draw the panels; at least one run must have a value."""
    from matplotlib.figure import Figure

    rows = -(-len(search.fields) // _COLUMNS)
    height = _PANEL_INCHES * (1 + rows) + _LEGEND_INCHES
    with styled("search"):
        figure = Figure(figsize=(WIDTH_INCHES, height), layout="constrained")
        grid = figure.add_gridspec(1 + rows, _COLUMNS)
        first = figure.add_subplot(grid[0, :])
        _draw_runs(first, search, lambda run: run.number)
        _draw_best(first, search)
        first.set_xlabel("run")
        first.set_ylabel(search.measure.axis)
        count_from_one(first)
        for place, field in enumerate(search.fields):
            row, column = divmod(place, _COLUMNS)
            axis = figure.add_subplot(grid[1 + row, column], sharey=first)
            _draw_field(axis, search, field)
            if column == 0:
                axis.set_ylabel(search.measure.axis)
            else:
                axis.tick_params(labelleft=False)
        if search.measure.is_share:
            keep_per_cent(first)
        figure.legend(*first.get_legend_handles_labels(), loc="outside lower center", ncols=5)
    return figure


def _draw_field(axis: Axes, search: SearchResult, field: SearchField) -> None:
    """Draw the values by one field: at its number, or above the name of its choice."""
    axis.set_xlabel(field.words)
    if field.choices is None:
        if field.log:
            in_decades(axis)
        _draw_runs(axis, search, lambda run: float(run.values[field.name]))
        if field.log:
            _keep_ticks_apart(axis)
        return
    choices = list(field.choices)
    _draw_runs(axis, search, lambda run: choices.index(run.values[field.name]))
    names = [label(choice) for choice in choices]
    axis.set_xticks(range(len(choices)), names, **turned_where_crowded(names, _AXIS_INCHES))
    axis.set_xlim(-_ROOM, len(choices) - 1 + _ROOM)


def _keep_ticks_apart(axis: Axes) -> None:
    """Name the decades of a logarithmic axis; if it has hardly two, also name 2 and 5 between."""
    from matplotlib.ticker import LogLocator, NullFormatter

    low, high = axis.get_xlim()
    if high / low < _DECADES_RATIO:
        axis.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axis.xaxis.set_minor_formatter(NullFormatter())


def _draw_runs(axis: Axes, search: SearchResult, place: Place) -> None:
    """Draw a mark for each run that has a value, with the best on top."""
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
    _draw_failed(axis, search, place)


def _draw_best(axis: Axes, search: SearchResult) -> None:
    so_far = search.best_so_far
    if so_far:
        heights = [search.measure.shown(value) or 0.0 for _, value in so_far]
        look: dict[str, Any] = {"color": LIGHT["series-2"], "linewidth": 1.2}
        axis.step([n for n, _ in so_far], heights, where="post", label="best so far", **look)


def _draw_failed(axis: Axes, search: SearchResult, place: Place) -> None:
    """Draw failed runs at the bottom, and make room for them."""
    across = [place(run) for run in search.runs if run.state == "failed"]
    if across:
        foot: dict[str, Any] = {"transform": axis.get_xaxis_transform(), "clip_on": False}
        look = {"s": _MARK_POINTS_SQUARED, "label": "failed", "zorder": 3, **_LOOKS["failed"]}
        axis.scatter(across, [0.0] * len(across), **foot, **look)
        axis.update_datalim([(x, 0.0) for x in across], updatey=False)
        axis.autoscale_view(scaley=False)
