"""Resources of the workers' processes over time: a panel per measure, a line per process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from math import inf, nan
from statistics import median
from typing import TYPE_CHECKING

from downpour.experiments.figures.style import WIDE_INCHES, series, styled
from downpour.experiments.reading.study_result import natural
from downpour.experiments.reading.timeline import ResourceSample

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_LINES_MAX = 12
_COLUMNS = 2
_GAP = 3.0
"""How many times the usual distance of two samples counts as a gap between them."""
_POINTS_MAX = 300
"""Maximum points of one line; readers can't distinguish more, and they make a page large."""
MEASURES: dict[str, Callable[[ResourceSample], float]] = {
    "CPU, cores": lambda sample: sample.cpu_share,
    "memory, MB": lambda sample: sample.memory_bytes / 1e6,
    "threads": lambda sample: sample.threads,
    "I/O wait, %": lambda sample: 100 * sample.io_wait,
}


def measures_of(samples: Sequence[ResourceSample]) -> list[str]:
    """Name the measures worth drawing, because they are not 0 throughout.

    If no process has samples of two moments, return none: a single dot shows no change.
    """
    workers = _drawn_workers(samples)
    drawn = [sample for sample in samples if sample.worker in workers]
    moments = {(sample.worker, sample.at_seconds) for sample in drawn}
    if len(moments) == len(workers):
        return []
    return [name for name, measure in MEASURES.items() if any(map(measure, drawn))]


def resource_figure(samples: Sequence[ResourceSample]) -> Figure:
    """Draw CPU, memory, threads and I/O wait over time: a panel per measure, a line per process.

    Only the measures that `measures_of` names get a panel; it must name at least one. I/O wait is
    the machine's; the other measures are the process's own. A line breaks where samples are
    missing, because a process without a task sends none.
    """
    from matplotlib.figure import Figure

    workers, shown = _drawn_workers(samples), measures_of(samples)
    with styled():
        columns = min(len(shown), _COLUMNS)
        rows = -(-len(shown) // columns)
        figure = Figure(figsize=(WIDE_INCHES, 0.8 + 1.6 * rows), layout="constrained")
        panels = list(figure.subplots(rows, columns, sharex=True, squeeze=False).flat)
        axes = panels[: len(shown)]
        for unused in panels[len(shown) :]:
            unused.remove()
        for axis, name in zip(axes, shown, strict=True):
            for place, worker in enumerate(workers):
                own = _thinned([sample for sample in samples if sample.worker == worker])
                look = {**series(place), "marker": ".", "markersize": 4.5, "linewidth": 1.1}
                look["clip_on"] = False  # keeps the full width of lines along the bottom
                times, values, alone = _broken(own, MEASURES[name])
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
        for line in legend.get_lines():
            line.set_marker("")
    return figure


def _drawn_workers(samples: Sequence[ResourceSample]) -> list[str]:
    return sorted({sample.worker for sample in samples}, key=natural)[:_LINES_MAX]


def _thinned(samples: Sequence[ResourceSample]) -> Sequence[ResourceSample]:
    """Keep every nth sample if there are more than a reader can distinguish."""
    return samples[:: -(-len(samples) // _POINTS_MAX)]


def _broken(
    samples: Sequence[ResourceSample], measure: Callable[[ResourceSample], float]
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
