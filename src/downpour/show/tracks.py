"""The events of a trace: workers' attempts, and the manager's work.

Perfetto (ui.perfetto.dev) and chrome://tracing read this format. A *process* is a group of tracks
there and a *thread* is one track; for us, a process is a worker or the manager.
"""

import json
import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Any, Literal, NamedTuple

from downpour.base.errors import one_line
from downpour.base.states import LOSS
from downpour.record.record_lines import AggregatedLine, Dated, EvaluatedLine, RecordLine
from downpour.record.result_parts import Measure
from downpour.record.tables import RecordedAttempt, Tables
from downpour.record.timeline import AttemptSpan, attempt_spans, decision

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
            "dur": self.duration_us,
            "cat": self.category or None,
            "id": self.flow,
            **_EXTRA.get(self.phase, {}),
            "args": known(self.args) or None,
        }
        shown = {name: value for name, value in fields.items() if value is not None}
        return json.dumps(shown, allow_nan=False)


def known(args: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments that have a value: no None, NaN or infinity; texts in one line."""
    shown = {name: one_line(v) if isinstance(v, str) else v for name, v in args.items()}
    return {
        name: value
        for name, value in shown.items()
        if value is not None and (not isinstance(value, float) or math.isfinite(value))
    }


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


FIRST_LANE = 1
"""The thread of a worker's attempts; overlapping ones take the following threads."""


@dataclass(frozen=True, slots=True)
class PlacedAttempt:
    """An attempt and its place in the trace, in microseconds."""

    span: AttemptSpan
    attempt: RecordedAttempt
    track: Track
    begin_us: int
    end_us: int


def placed(tables: Tables, processes: Mapping[str, int]) -> tuple[PlacedAttempt, ...]:
    """Give each attempt a track of its worker's process; return them by their beginning."""
    by_worker: defaultdict[str, list[AttemptSpan]] = defaultdict(list)
    for span in attempt_spans(tables):
        by_worker[span.worker].append(span)
    attempts = []
    for worker, spans in by_worker.items():
        times = [_times(span) for span in spans]
        for span, (begin, end), lane in zip(spans, times, lanes(times), strict=True):
            track = Track(processes[worker], FIRST_LANE + lane)
            attempt = tables.rounds[span.round - 1].attempts[span.shard][span.attempt]
            attempts.append(PlacedAttempt(span, attempt, track, begin, end))
    return tuple(sorted(attempts, key=lambda one: one.begin_us))


def _times(span: AttemptSpan) -> tuple[int, int]:
    begin = microseconds(span.begin_seconds)
    # An arrow needs a moment inside the slice.
    return begin, max(begin + 1, microseconds(span.end_seconds))


def slices(attempts: Iterable[PlacedAttempt]) -> Iterator[TraceEvent]:
    """Yield a slice for each attempt, in order of their beginning."""
    for one in attempts:
        yield TraceEvent(
            phase="X",
            name=f"round {one.span.round} shard {one.span.shard}",
            category=one.span.outcome,
            track=one.track,
            at_us=one.begin_us,
            duration_us=one.end_us - one.begin_us,
            args=_arguments(one.span, one.attempt),
        )


def _arguments(span: AttemptSpan, attempt: RecordedAttempt) -> dict[str, Any]:
    """Return what a viewer shows of a selected slice; None for unknown values."""
    assigned, updated, failed = attempt.assigned, attempt.updated, attempt.failed
    trained = "steps", "samples", "loss", "load_seconds", "train_seconds", "publish_seconds"
    return {
        "round": span.round,
        "shard": span.shard,
        "attempt": span.attempt,
        "outcome": span.outcome,
        "why_assigned": getattr(assigned, "reason", None),
        "from_step": getattr(assigned, "from_step", None),
        "share": getattr(assigned, "share", None),
        "forecast_q10_seconds": getattr(assigned, "q10_seconds", None),
        "forecast_median_seconds": getattr(assigned, "q50_seconds", None),
        "forecast_q90_seconds": getattr(assigned, "q90_seconds", None),
        **{name: getattr(updated, name, None) for name in trained},
        "update_bytes": getattr(updated, "bytes", None),
        "ended_as": getattr(failed, "failure", None),
        "why_ended": getattr(failed, "reason", None),
        "last_of_round": span.last or None,
    }


def arrows(attempts: Sequence[PlacedAttempt]) -> tuple[list[TraceEvent], list[TraceEvent]]:
    """Return the starts and the ends of the arrows between attempts at the same task.

    An arrow leads from the attempt whose work continued to the one that took it over. Both lists
    are in order of time.
    """
    starts, ends = [], []
    for number, (before, after) in enumerate(_continued(attempts), 1):
        start = TraceEvent(
            phase="s",
            name="hand-over" if before.span.outcome == "moved" else "continued",
            category="hand-over",
            track=before.track,
            # Viewers tie an arrow to the slice that is open at its time.
            at_us=min(before.end_us - 1, after.begin_us),
            flow=number,
        )
        starts.append(start)
        ends.append(replace(start, phase="f", track=after.track, at_us=after.begin_us))
    return _by_time(starts), _by_time(ends)


def _by_time(events: Iterable[TraceEvent]) -> list[TraceEvent]:
    return sorted(events, key=lambda event: event.at_us)


def _continued(attempts: Iterable[PlacedAttempt]) -> Iterator[tuple[PlacedAttempt, PlacedAttempt]]:
    """Yield each attempt that continued another attempt's work, after that attempt."""

    def task(one: PlacedAttempt) -> tuple[int, int]:
        return one.span.round, one.span.shard

    for _, several in groupby(sorted(attempts, key=task), key=task):
        earlier: list[PlacedAttempt] = []
        for one in several:
            before = _before(one, earlier)
            if before is not None:
                yield before, one
            earlier.append(one)


def _before(one: PlacedAttempt, earlier: Sequence[PlacedAttempt]) -> PlacedAttempt | None:
    """Return the attempt whose snapshot it began from, or that moved before it had a snapshot."""
    if not earlier:
        return None
    from_step = one.attempt.assigned.from_step if one.attempt.assigned is not None else 0
    if not from_step:
        return earlier[-1] if earlier[-1].span.outcome == "moved" else None
    savers = (
        other
        for other in reversed(earlier)
        if any(line.step == from_step for _, line in other.attempt.saved)
    )
    return next(savers, earlier[-1])


Relative = Sequence[Dated]
"""A record in order of time, in seconds since the first assignment."""

PROCESS = 1
DECISIONS = Track(PROCESS, 1)
_ROWS = {"rounds": 1_000_000, "aggregations": 2_000_000, "evaluations": 3_000_000}
"""The number of the first thread of each; overlapping rounds take the following ones."""


def manager_slices(tables: Tables, now: float) -> tuple[list[TraceEvent], list[tuple[int, str]]]:
    """Return rounds, aggregations and evaluations in order of time, and the names of their tracks.

    `now` is when the record ends.
    """
    start = tables.start
    evaluations = (*tables.evaluated.values(), *tables.tested.values())
    rows = {
        "rounds": _rounds(tables, now),
        "aggregations": [_aggregation(v.at - start, v.line) for v in tables.versions.values()],
        "evaluations": [_evaluation(at - start, line) for at, line in evaluations],
    }
    events, threads = [], [(DECISIONS.thread, "decisions")]
    for row, several in rows.items():
        several.sort(key=lambda one: one.at_us)
        numbers = lanes((one.at_us, one.at_us + (one.duration_us or 0)) for one in several)
        for one, lane in zip(several, numbers, strict=True):
            events.append(replace(one, track=Track(PROCESS, _ROWS[row] + lane)))
        threads += tracks_of(_ROWS[row], row, max(numbers, default=-1) + 1)
    return _by_time(events), threads


def _rounds(tables: Tables, now: float) -> list[TraceEvent]:
    """Return each round, from its first assignment to the last version made of its updates."""
    ended: dict[int, float] = {}
    for version in tables.versions.values():
        numbers = {number for number, _ in version.line.parts} or {version.line.round}
        ended.update(dict.fromkeys(numbers, version.at - tables.start))
    begun = {number: one.assigned() for number, one in tables.rounds.items()}
    return [
        _slice(
            f"round {number + 1}",
            min(attempt.begin for attempt in attempts) - tables.start,
            ended.get(number, now),
            round=number + 1,
        )
        for number, attempts in begun.items()
        if attempts
    ]


def _aggregation(at: float, line: AggregatedLine) -> TraceEvent:
    return _slice(
        f"version {line.version}",
        at - line.seconds,
        at,
        round=line.round + 1,
        version=line.version,
        bytes=line.bytes,
        training_loss=line.loss,
        updates=len(line.parts) or None,
        most_stale=max(line.staleness, default=None),
    )


def _evaluation(at: float, line: EvaluatedLine) -> TraceEvent:
    return _slice(
        f"evaluation of round {line.round + 1}",
        at - line.seconds,
        at,
        round=line.round + 1,
        part=line.part,
        loss=line.loss,
        **{f"metric {name}": value for name, value in line.metrics.items()},
    )


def _slice(name: str, begin: float, end: float, **args: Any) -> TraceEvent:
    at_us = microseconds(begin)
    lasts_us = max(0, microseconds(end) - at_us)
    track = Track(PROCESS)
    return TraceEvent(
        phase="X", name=name, track=track, at_us=at_us, duration_us=lasts_us, args=args
    )


def decisions(record: Relative) -> Iterator[TraceEvent]:
    """Yield the decisions of the manager and its policy, in their words, and the ending."""
    for at, line in record:
        made = decision(line)
        if made is not None:
            at_us = microseconds(at)
            yield TraceEvent(
                phase="i", name=made.name, track=DECISIONS, at_us=at_us, args=made.details
            )


def counters(record: Relative) -> Iterator[TraceEvent]:
    """Yield the losses, the metrics and the number of waiting updates, whenever they change."""
    tables = Tables()
    yield _counter("updates waiting", 0.0, 0)
    for at, line in record:
        before = len(tables.waiting)
        tables.take(at, line)
        if len(tables.waiting) != before:
            yield _counter("updates waiting", at, len(tables.waiting))
        for name, value in _measured(line):
            if math.isfinite(value):
                yield _counter(name, at, value)


def _measured(line: RecordLine) -> Iterable[tuple[str, float]]:
    match line:
        case AggregatedLine():
            yield "training loss", line.loss
        case EvaluatedLine():
            for name, value in {**line.metrics, LOSS: line.loss}.items():
                measure = Measure(name, line.part)
                shown = measure.shown(value)
                yield measure.axis, math.nan if shown is None else shown


def _counter(name: str, at: float, value: float) -> TraceEvent:
    track, at_us = Track(PROCESS), microseconds(at)
    return TraceEvent(phase="C", name=name, track=track, at_us=at_us, args={"value": value})
