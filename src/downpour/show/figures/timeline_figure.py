"""Which worker trained which shard when: a lane per worker, a box per attempt.

A box has its shard's number if that fits. If most numbers don't fit, we draw the whole run without
numbers. Below it we draw some rounds again, as large as their numbers need.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from downpour.record.study_result import natural
from downpour.record.timeline import AttemptSpan
from downpour.show.figures.style import LIGHT, WIDE_INCHES, WIDTH_INCHES, new_figure, styled

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SPANS_MAX = 500
"""Maximum boxes with numbers in one panel."""
LANES_MAX = 40
_LOOKS = {
    "moved": ("series-1", "////", "went on elsewhere"),
    "stopped": ("muted", "....", "not needed any more"),
    "failed": ("failure", "////", "failed"),
    "open": ("muted", "", "not ended"),
}
"""Color, hatch and name of attempts that did not end with an update."""
_NOTABLE = ("moved", "failed")
_STRONGEST = ("failed", "moved", "stopped", "open", "trained")
"""If we draw several boxes as one, the first of these counts, so that readers don't miss it."""
_LANE_INCHES = 0.24
_LOW_LANE_INCHES = 0.08
_WHOLE_INCHES = 2.4
"""The height of all lanes of a whole run together; the lanes get as low as that takes."""
_NAME_INCHES = 0.15
_KEYS_ABREAST = 5
_LETTER_INCHES = 0.075
_AXIS_SHARE = 0.88
"""The axis's share of a figure's width; the names of workers take the rest."""
_FITTING_SHARE = 0.8
"""The share of boxes that must have room for numbers in a panel with numbers."""
_ENDS_MAX = 80
"""More lines than these, at the ends of rounds, would hide the boxes."""
_SPECK_INCHES = 0.02
"""We draw narrower boxes as one with any neighbors."""
_NARROW_INCHES = 0.08
"""We draw narrower boxes as one with neighbors of the same look; their edges would hide them."""
_NEVER: Mapping[str, Sequence[float]] = {}
_DASHES = (0, (4, 2))
Look = tuple[str, str]
"""The name of a color, and a hatch."""
Box = tuple[float, float, AttemptSpan]
"""Its first and last second, and the attempt whose look it has."""


@dataclass(frozen=True, slots=True)
class _Window:
    """The seconds that a panel shows, and how many inches of its axis a second takes."""

    begin: float
    end: float
    scale: float

    @classmethod
    def around(cls, spans: Sequence[AttemptSpan], figure_inches: float) -> _Window:
        """Return the window that shows all given attempts in a figure of this width."""
        begin = min((span.begin_seconds for span in spans), default=0.0)
        end = max((span.end_seconds for span in spans), default=1.0)
        end = end if end > begin else begin + 1.0
        return cls(begin, end, figure_inches * _AXIS_SHARE / (end - begin))

    @property
    def seconds(self) -> float:
        return self.end - self.begin

    def fits(self, span: AttemptSpan) -> bool:
        """Whether an attempt's box has room for the shard's number."""
        inches = (span.end_seconds - span.begin_seconds) * self.scale
        return inches > _LETTER_INCHES * (len(str(span.shard)) + 0.6)

    def fit(self, spans: Sequence[AttemptSpan]) -> bool:
        """Whether most boxes have room for their numbers."""
        return sum(map(self.fits, spans)) >= _FITTING_SHARE * len(spans)

    def seen(self, spans: Sequence[AttemptSpan]) -> list[AttemptSpan]:
        """Return the attempts that the window shows at least partly."""
        return [
            span
            for span in spans
            if span.begin_seconds < self.end
            and (span.end_seconds > self.begin or span.begin_seconds >= self.begin)
        ]


def timeline_figure(spans: Sequence[AttemptSpan], disturbed: Sequence[float] = ()) -> Figure:
    """Draw a lane for each of the first workers, with its attempts.

    Enlarged rounds begin with the round in which most attempts moved or failed, or else with the
    longest. A dashed line marks each second at which someone `disturbed` a process.
    """
    if not is_enlarged(spans):
        return timelines_figure({"": spans}, WIDE_INCHES, {"": disturbed})
    workers, whole = _workers(spans), _Window.around(spans, WIDE_INCHES)
    low = min(_LANE_INCHES, max(_LOW_LANE_INCHES, _WHOLE_INCHES / len(workers)))
    heights = [low * len(workers), _LANE_INCHES * len(workers)]
    closer = _enlarged(spans)
    with styled():
        figure = new_figure(WIDE_INCHES, 2.0 + sum(heights))
        above, below = figure.subplots(2, height_ratios=heights)
        _draw_whole(above, workers, spans, whole)
        _frame(above, workers, spans, whole, every=max(1, round(_NAME_INCHES / low)))
        above.axvspan(closer.begin, closer.end, fill=False, edgecolor=LIGHT["ink"], linewidth=1.2)
        _draw_lanes(below, workers, closer.seen(spans), closer)
        _frame(below, workers, closer.seen(spans), closer)
        _entitle(above, below, spans, closer)
        seen = _mark(above, disturbed, whole)
        _mark(below, disturbed, closer)
        _draw_key(figure, spans, disturbed=seen)
    return figure


def is_enlarged(spans: Sequence[AttemptSpan]) -> bool:
    """Whether we draw some rounds twice, because most boxes have no room for numbers."""
    has_room = len(spans) <= SPANS_MAX and _Window.around(spans, WIDE_INCHES).fit(spans)
    return not has_room and len({span.round for span in spans}) > 1


def timelines_figure(
    runs: Mapping[str, Sequence[AttemptSpan]],
    inches: float = 1.4 * WIDTH_INCHES,
    disturbed: Mapping[str, Sequence[float]] = _NEVER,
) -> Figure:
    """Draw the timelines of runs, by their titles, one above the other over the same seconds.

    Every worker has a lane in all of them, even if it trained nothing. Of a long run we draw the
    first rounds, as many as a reader can distinguish. A dashed line marks each second at which
    someone `disturbed` a process, by the run's title.
    """
    shown = {title: first_rounds(spans) for title, spans in runs.items()}
    everything = [span for spans in shown.values() for span in spans]
    workers = _workers(everything)
    window = _Window.around(everything, inches)
    marked = False
    with styled():
        height = len(shown) * (0.3 + _LANE_INCHES * max(1, len(workers)))
        figure = new_figure(inches, 0.8 + height)
        axes = figure.subplots(len(shown), sharex=True, squeeze=False)[:, 0]
        for axis, (title, spans) in zip(axes, shown.items(), strict=True):
            _draw_lanes(axis, workers, spans, window)
            _frame(axis, workers, spans, window)
            axis.set_title(title)
            marked |= _mark(axis, disturbed.get(title, ()), window)
        axes[0].set_title(_words(everything), loc="right" if axes[0].get_title("left") else "left")
        axes[-1].set_xlabel("seconds since the first assignment")
        _draw_key(figure, everything, disturbed=marked)
    return figure


def first_rounds(spans: Sequence[AttemptSpan]) -> list[AttemptSpan]:
    """Return whole rounds from the first on, as many as a reader can distinguish in a figure."""
    shown: list[AttemptSpan] = []
    for number in sorted({span.round for span in spans}):
        own = [span for span in spans if span.round == number]
        if shown and len(shown) + len(own) > SPANS_MAX:
            break
        shown += own
    return shown


def _enlarged(spans: Sequence[AttemptSpan]) -> _Window:
    """Return a window on a round worth a look, and on the next ones while their numbers fit.

    The window is at most half of the run, unless that round alone is longer.
    """
    rounds: dict[int, list[AttemptSpan]] = {}
    for span in spans:
        rounds.setdefault(span.round, []).append(span)

    def weight(number: int) -> tuple[int, float]:
        window = _Window.around(rounds[number], WIDE_INCHES)
        other = sum(span.outcome in _NOTABLE for span in rounds[number])
        return other, round(window.seconds, 3)

    numbers = sorted(rounds)
    first = max(numbers, key=weight)
    shown, window = rounds[first], _Window.around(rounds[first], WIDE_INCHES)
    longest_seconds = _Window.around(spans, WIDE_INCHES).seconds / 2
    for number in numbers[numbers.index(first) + 1 :]:
        shown = shown + rounds[number]
        wider = _Window.around(shown, WIDE_INCHES)
        if len(shown) > SPANS_MAX or wider.seconds > longest_seconds or not wider.fit(shown):
            break
        window = wider
    return window


def _workers(spans: Sequence[AttemptSpan]) -> list[str]:
    """Return the workers to draw; if they are many, the ones with the most to see."""
    told = Counter(span.worker for span in spans if span.last or span.outcome in _NOTABLE)
    names = sorted({span.worker for span in spans}, key=natural)
    return sorted(sorted(names, key=lambda name: -told[name])[:LANES_MAX], key=natural)


def _draw_lanes(
    axis: Axes, workers: Sequence[str], spans: Sequence[AttemptSpan], window: _Window
) -> None:
    lanes = {worker: lane for lane, worker in enumerate(workers)}
    for span in (span for span in spans if span.worker in lanes):
        lane, (colour, hatch) = lanes[span.worker], _look_of(span)
        width = span.end_seconds - span.begin_seconds
        look: dict[str, Any] = {"color": LIGHT[colour], "hatch": hatch, "edgecolor": LIGHT["paper"]}
        axis.barh(lane, width, 0.74, left=span.begin_seconds, linewidth=0.5, **look)
        if window.fits(span):
            middle = span.begin_seconds + width / 2
            letters: dict[str, Any] = {"ha": "center", "va": "center_baseline", "fontsize": 7.5}
            paper = {"facecolor": LIGHT[colour], "edgecolor": "none", "pad": 1.0} if hatch else None
            letters |= {"color": LIGHT["paper"], "bbox": paper, "clip_on": True}
            axis.text(middle, lane, str(span.shard), **letters)


def _draw_whole(
    axis: Axes, workers: Sequence[str], spans: Sequence[AttemptSpan], window: _Window
) -> None:
    """Draw boxes of one look as one shape, because pages with thousands of shapes are slow."""
    from matplotlib.patches import PathPatch
    from matplotlib.path import Path

    lanes: dict[str, list[AttemptSpan]] = {worker: [] for worker in workers}
    for span in spans:
        lanes.get(span.worker, []).append(span)
    corners: dict[Look, list[tuple[float, float]]] = {}
    for lane, own in enumerate(lanes.values()):
        for begin, end, span in _merged(own, window.scale):
            top, bottom = lane - 0.37, lane + 0.37
            box = [(begin, top), (end, top), (end, bottom), (begin, bottom), (begin, top)]
            corners.setdefault(_look_of(span), []).extend(box)
    box_codes = [Path.MOVETO, Path.LINETO, Path.LINETO, Path.LINETO, Path.CLOSEPOLY]
    for (colour, hatch), points in corners.items():
        path = Path(points, box_codes * (len(points) // len(box_codes)))
        look: dict[str, Any] = {"facecolor": LIGHT[colour], "edgecolor": LIGHT["paper"]}
        axis.add_patch(PathPatch(path, hatch=hatch, linewidth=0.3, **look))


def _merged(spans: Sequence[AttemptSpan], scale: float) -> Iterator[Box]:
    """Yield the boxes of a lane, joining specks with neighbors, and narrow boxes with equal ones.

    A second takes `scale` inches.
    """
    speck, narrow = _SPECK_INCHES / scale, _NARROW_INCHES / scale
    box: Box | None = None
    for span in spans:
        begin, end = span.begin_seconds, span.end_seconds
        if box is not None:
            begun, until, before = box
            is_speck = max(until, end) - begun < speck
            is_equal = begin - until < speck and _look_of(span) == _look_of(before)
            if is_speck or (is_equal and end - begin < narrow):
                strongest = min(
                    before, span, key=lambda s: (_STRONGEST.index(s.outcome), not s.last)
                )
                box = begun, max(until, end), strongest
                continue
            yield box
        box = begin, end, span
    if box is not None:
        yield box


def _look_of(span: AttemptSpan) -> Look:
    of_round = "series-1" if span.round % 2 else "series-6"
    if span.outcome == "moved":
        return of_round, _LOOKS["moved"][1]
    if look := _LOOKS.get(span.outcome):
        return look[0], look[1]
    return "series-2" if span.last else of_round, ""


def _frame(
    axis: Axes,
    workers: Sequence[str],
    spans: Sequence[AttemptSpan],
    window: _Window,
    every: int = 1,
) -> None:
    """Name the lanes, or every nth of them, and mark when rounds' last updates arrived."""
    ends = [span.end_seconds for span in spans if span.last]
    for at in ends if len(ends) <= _ENDS_MAX else ():
        axis.axvline(at, color=LIGHT["muted"], linewidth=0.6, zorder=0)
    axis.set_yticks(range(0, len(workers), every), workers[::every])
    axis.set_ylim(len(workers) - 0.5, -0.5)
    axis.set_xlim(window.begin, window.end + 0.01 * window.seconds)
    axis.grid(visible=False, axis="y")
    axis.tick_params(axis="y", length=0)


def _mark(axis: Axes, disturbed: Sequence[float], window: _Window) -> bool:
    """Mark the disturbed seconds that a panel shows; return whether it shows any."""
    seen = [at for at in disturbed if window.begin <= at <= window.end]
    for at in seen:
        axis.axvline(at, color=LIGHT["failure"], linestyle=_DASHES)
    return bool(seen)


def _entitle(above: Axes, below: Axes, spans: Sequence[AttemptSpan], closer: _Window) -> None:
    rounds, workers = ({span.round for span in spans}, {span.worker for span in spans})
    drawn = ""
    if len(workers) > LANES_MAX:
        drawn = f"; {LANES_MAX} of {len(workers):,} workers, with most waits, moves and failures"
    above.set_title(f"the whole run: {len(rounds):,} rounds, {len(spans):,} attempts{drawn}")
    seen = closer.seen(spans)
    first, last = min(span.round for span in seen), max(span.round for span in seen)
    which = f"round {first}" if first == last else f"rounds {first} to {last}"
    below.set_title(f"{which}, enlarged: {_words(seen)}")
    below.set_xlabel("seconds since the first assignment")


def _words(spans: Sequence[AttemptSpan]) -> str:
    ends = ", lines the ends of rounds" if any(span.last for span in spans) else ""
    return f"numbers are shards{ends}"


def _draw_key(figure: Figure, spans: Sequence[AttemptSpan], *, disturbed: bool = False) -> None:
    from matplotlib.legend_handler import HandlerTuple
    from matplotlib.lines import Line2D
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
    if disturbed:
        line = Line2D([], [], color=LIGHT["failure"], linestyle=_DASHES)
        keys["a process slowed or killed"] = line
    figure.legend(
        keys.values(),
        keys.keys(),
        loc="outside lower center",
        ncols=min(len(keys), _KEYS_ABREAST if figure.get_figwidth() > WIDE_INCHES - 1 else 3),
        handler_map={tuple: HandlerTuple(ndivide=None, pad=0)},
    )
