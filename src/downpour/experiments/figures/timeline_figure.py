"""Figures along time: which worker trained which shard when, and what the workers used."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from math import inf, nan
from statistics import median
from typing import TYPE_CHECKING, Any

from downpour.experiments.figures.style import LIGHT, WIDTH_INCHES, series, styled
from downpour.experiments.reading.study_result import natural
from downpour.experiments.reading.timeline import AttemptSpan, ResourceSample

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SPANS_MAX = 500
_LOOKS = {
    "moved": ("series-1", "////", "went on elsewhere"),
    "stopped": ("muted", "....", "not needed any more"),
    "failed": ("failure", "////", "failed"),
    "open": ("muted", "", "not ended"),
}
"""Colour, hatch and name of attempts that have another end than an update."""
_LANES_MAX = 40
_KEYS_ABREAST = 3
_LETTER_INCHES = 0.075
_LINES_MAX = 12
_GAP = 3.0
"""Times the usual distance of two samples: farther apart, something is missing between them."""
_POINTS_MAX = 300
"""Of one line: more are not distinguishable, and make a page large."""
MEASURES: dict[str, Callable[[ResourceSample], float]] = {
    "CPU, cores": lambda sample: sample.cpu_share,
    "memory, MB": lambda sample: sample.memory_bytes / 1e6,
    "threads": lambda sample: sample.threads,
    "I/O wait, %": lambda sample: 100 * sample.io_wait,
}


def timeline_figure(spans: Sequence[AttemptSpan]) -> Figure:
    """Draw a lane for each worker, and in it each attempt with the shard's number.

    Only the first rounds are drawn, as many as are distinguishable.
    """
    return timelines_figure({"": spans})


def timelines_figure(runs: Mapping[str, Sequence[AttemptSpan]]) -> Figure:
    """Draw the timelines of runs, by their titles, one above the other along the same seconds.

    Every worker has a lane in all of them, also where it trained nothing.
    """
    from matplotlib.figure import Figure

    shown = {title: first_rounds(spans) for title, spans in runs.items()}
    everything = [span for spans in shown.values() for span in spans]
    workers = sorted({span.worker for span in everything}, key=natural)[:_LANES_MAX]
    end = max((span.end_seconds for span in everything), default=1.0) or 1.0
    with styled():
        inches = len(shown) * (0.3 + 0.24 * max(1, len(workers)))
        figure = Figure(figsize=(WIDTH_INCHES * 1.4, 0.8 + inches), layout="constrained")
        axes = figure.subplots(len(shown), sharex=True, squeeze=False)[:, 0]
        for axis, (title, spans) in zip(axes, shown.items(), strict=True):
            _draw_lanes(axis, workers, spans, end)
            axis.set_title(title)
        axes[-1].set_xlabel("seconds since the first assignment")
        _draw_key(figure, axes[0], everything)
    return figure


def measures_of(samples: Sequence[ResourceSample]) -> list[str]:
    """Name the measures that have something to draw: those that are not 0 throughout.

    There are none if no process has samples of two moments: a single dot shows no change.
    """
    workers = _drawn_workers(samples)
    drawn = [sample for sample in samples if sample.worker in workers]
    moments = {(sample.worker, sample.at_seconds) for sample in drawn}
    if len(moments) == len(workers):
        return []
    return [name for name, measure in MEASURES.items() if any(map(measure, drawn))]


def resource_figure(samples: Sequence[ResourceSample]) -> Figure:
    """Draw CPU, memory, threads and I/O wait over time: a panel each, a line a process.

    Only the measures that `measures_of` names have a panel; it must name one at least.
    I/O wait is the machine's; the others are the process's own. A line is broken where samples are
    missing, because a process that has nothing to train sends none.
    """
    from matplotlib.figure import Figure

    workers, shown = _drawn_workers(samples), measures_of(samples)
    with styled():
        size = WIDTH_INCHES * 1.4, 0.8 + 1.35 * len(shown)
        figure = Figure(figsize=size, layout="constrained")
        axes = figure.subplots(len(shown), 1, sharex=True, squeeze=False)[:, 0]
        for axis, name in zip(axes, shown, strict=True):
            for place, worker in enumerate(workers):
                own = _thinned([sample for sample in samples if sample.worker == worker])
                look = {**series(place), "marker": ".", "markersize": 4.5, "linewidth": 1.1}
                look["clip_on"] = False  # lines along the bottom would lose half of their width
                times, values, alone = _broken(own, MEASURES[name])
                axis.plot(times, values, label=worker, markevery=alone, **look)
            axis.set_ylabel(name)
            axis.set_ylim(0, max(1.0, axis.get_ylim()[1]))
            axis.set_xlim(left=0)
        figure.align_ylabels(axes)
        axes[-1].set_xlabel("seconds since the first assignment")
        handles, names = axes[0].get_legend_handles_labels()
        legend = figure.legend(handles, names, loc="outside lower center", ncols=4)
        for line in legend.get_lines():
            line.set_marker("")
    return figure


def _drawn_workers(samples: Sequence[ResourceSample]) -> list[str]:
    return sorted({sample.worker for sample in samples}, key=natural)[:_LINES_MAX]


def _thinned(samples: Sequence[ResourceSample]) -> Sequence[ResourceSample]:
    """Keep every nth sample, where there are more than are distinguishable."""
    return samples[:: -(-len(samples) // _POINTS_MAX)]


def _broken(
    samples: Sequence[ResourceSample], measure: Callable[[ResourceSample], float]
) -> tuple[list[float], list[float], list[int]]:
    """Return the points of a line, with no number in its gaps, and the places of lone points."""
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


def first_rounds(spans: Sequence[AttemptSpan]) -> list[AttemptSpan]:
    """Return whole rounds from the first on, as many as are distinguishable in a figure."""
    shown: list[AttemptSpan] = []
    for number in sorted({span.round for span in spans}):
        own = [span for span in spans if span.round == number]
        if shown and len(shown) + len(own) > SPANS_MAX:
            break
        shown += own
    return shown


def _draw_lanes(
    axis: Axes, workers: Sequence[str], spans: Sequence[AttemptSpan], end: float
) -> None:
    for span in (span for span in spans if span.worker in workers):
        _draw_span(axis, workers.index(span.worker), span, end)
    _draw_ends(axis, spans)
    axis.set_yticks(range(len(workers)), workers)
    axis.set_ylim(len(workers) - 0.5, -0.5)
    axis.set_xlim(0, end * 1.01)
    axis.grid(visible=False, axis="y")
    axis.tick_params(axis="y", length=0)


def _draw_span(axis: Axes, lane: int, span: AttemptSpan, end: float) -> None:
    width = span.end_seconds - span.begin_seconds
    colour, hatch = LIGHT["series-1" if span.round % 2 else "series-6"], ""
    if span.outcome == "moved":
        hatch = _LOOKS["moved"][1]
    elif look := _LOOKS.get(span.outcome):
        colour, hatch = LIGHT[look[0]], look[1]
    elif span.last:
        colour = LIGHT["series-2"]
    axis.barh(
        lane,
        width,
        0.74,
        left=span.begin_seconds,
        color=colour,
        hatch=hatch,
        edgecolor=LIGHT["paper"],
        linewidth=0.5,
    )
    text = str(span.shard)
    if width / end * WIDTH_INCHES > _LETTER_INCHES * (len(text) + 0.6):
        middle = span.begin_seconds + width / 2
        letters: dict[str, Any] = {"ha": "center", "va": "center_baseline", "fontsize": 7.5}
        behind = {"facecolor": colour, "edgecolor": "none", "pad": 1.0} if hatch else None
        axis.text(middle, lane, text, color=LIGHT["paper"], bbox=behind, **letters)


def _draw_ends(axis: Axes, spans: Sequence[AttemptSpan]) -> None:
    """Mark where each round's last update arrived."""
    for span in spans:
        if span.last:
            axis.axvline(span.end_seconds, color=LIGHT["muted"], linewidth=0.6, zorder=0)


def _draw_key(figure: Figure, axis: Axes, spans: Sequence[AttemptSpan]) -> None:
    from matplotlib.legend_handler import HandlerTuple
    from matplotlib.patches import Patch

    def patch(colour: str, hatch: str = "") -> Patch:
        return Patch(facecolor=LIGHT[colour], hatch=hatch, edgecolor=LIGHT["paper"])

    keys: dict[str, Any] = {
        "trained, in odd and even rounds": (patch("series-1"), patch("series-6"))
    }
    if any(span.last for span in spans):
        keys["the one its round waited for"] = patch("series-2")
    there = {span.outcome for span in spans}
    keys |= {
        name: patch(colour, hatch) for key, (colour, hatch, name) in _LOOKS.items() if key in there
    }
    ends = ", lines the ends of rounds" if any(span.last for span in spans) else ""
    axis.set_title(f"numbers are shards{ends}", loc="right" if axis.get_title("left") else "left")
    figure.legend(
        keys.values(),
        keys.keys(),
        loc="outside lower center",
        ncols=min(len(keys), _KEYS_ABREAST),
        handler_map={tuple: HandlerTuple(ndivide=None, pad=0)},
    )
