"""The events of a trace, in the JSON "Trace Event Format".

Perfetto (ui.perfetto.dev) and chrome://tracing read this format. A *process* is a group of tracks
there and a *thread* is one track; for us, a process is a worker or the manager.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from downpour.host.text import one_line

Phase = Literal["X", "i", "C", "s", "f", "M"]
"""A slice, an instant, a counter's value, the start and the end of an arrow, a track's name."""

_EXTRA: dict[Phase, dict[str, str]] = {
    "i": {"s": "t"},  # drawn on its own track only
    "f": {"bp": "e"},  # the arrow ends at the slice around it, not at the next one
}


class Track(NamedTuple):
    """The place of an event; Perfetto takes thread 0 for a kernel's idle thread."""

    process: int
    thread: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceEvent:
    """One event; times are whole microseconds since the first assignment.

    `duration_us` belongs to slices, and `flow` is the number of an arrow. Readers of the format
    match the two ends of an arrow by category, name and number.
    """

    phase: Phase
    name: str
    track: Track
    at_us: int = 0
    duration_us: int | None = None
    category: str = ""
    flow: int | None = None
    args: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> str:
        """Write the event in one line, as pure ASCII."""
        fields: dict[str, Any] = {
            "ph": self.phase,
            "name": one_line(self.name),
            "pid": self.track.process,
            "tid": self.track.thread,
            "ts": self.at_us,
        }
        if self.duration_us is not None:
            fields["dur"] = self.duration_us
        if self.category:
            fields["cat"] = self.category
        if self.flow is not None:
            fields["id"] = self.flow
        fields |= _EXTRA.get(self.phase, {})
        if shown := known(self.args):
            fields["args"] = shown
        return json.dumps(fields, allow_nan=False)


def known(args: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments that have a value: no None, NaN or infinity; texts in one line."""
    shown = {name: one_line(v) if isinstance(v, str) else v for name, v in args.items()}
    return {name: value for name, value in shown.items() if _is_known(value)}


def _is_known(value: object) -> bool:
    return value is not None and (not isinstance(value, float) or math.isfinite(value))


def microseconds(seconds: float) -> int:
    """Return a time of the trace; moments before the first assignment become zero."""
    return max(0, round(seconds * 1e6))


def lanes(spans: Iterable[tuple[int, int]]) -> list[int]:
    """Number the tracks, from 0, that keep spans apart; each span takes the first free track.

    Slices of one track must not overlap partly, because viewers would cut or drop them.

    Args:
        spans: begin and end of each span, sorted by begin.
    """
    ends: list[int] = []
    chosen = []
    for begin, end in spans:
        free = next((lane for lane, until in enumerate(ends) if until <= begin), len(ends))
        ends[free : free + 1] = [end]
        chosen.append(free)
    return chosen


def tracks_of(first: int, name: str, count: int) -> list[tuple[int, str]]:
    """Number and name the tracks for overlapping slices of one kind: "rounds", "rounds (2)"."""
    return [(first + lane, f"{name} ({lane + 1})" if lane else name) for lane in range(count)]


def named(track: Track, process: str, threads: Iterable[tuple[int, str]]) -> list[TraceEvent]:
    """Name a process and its threads; viewers sort both by their numbers."""

    def said(what: str, at: Track, **args: object) -> TraceEvent:
        return TraceEvent(phase="M", name=what, track=at, args=args)

    made = [
        said("process_name", track, name=process),
        said("process_sort_index", track, sort_index=track.process),
    ]
    for number, name in threads:
        at = Track(track.process, number)
        made += [
            said("thread_name", at, name=name),
            said("thread_sort_index", at, sort_index=number),
        ]
    return made
