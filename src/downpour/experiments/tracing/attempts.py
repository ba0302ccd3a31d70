"""The workers' tracks of a trace: attempts as slices, hand-overs as arrows."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Any

from downpour.experiments.reading.timeline import AttemptSpan
from downpour.experiments.tracing.events import TraceEvent, Track, lanes, microseconds
from downpour.files.records.attempt_lines import (
    AssignedLine,
    AttemptFailedLine,
    SavedLine,
    UpdatedLine,
)
from downpour.files.records.record_lines import RecordLine

FIRST_LANE = 1
"""The thread of a worker's attempts; overlapping ones take the following threads."""
Attempt = tuple[int, int, int]
"""Round and shard of a task, as the record counts them, and the number of the attempt."""


@dataclass(frozen=True, slots=True)
class AttemptLines:
    """The record's lines of each attempt, and the attempt that saved each step of a task."""

    assigned: dict[Attempt, AssignedLine] = field(default_factory=dict)
    updated: dict[Attempt, UpdatedLine] = field(default_factory=dict)
    failed: dict[Attempt, AttemptFailedLine] = field(default_factory=dict)
    saved: dict[Attempt, int] = field(default_factory=dict)

    @classmethod
    def of(cls, record: Iterable[tuple[float, RecordLine]]) -> AttemptLines:
        """Sort the lines of a record; of repeated lines, the latest counts."""
        told = cls()
        for _, line in record:
            match line:
                case AssignedLine():
                    told.assigned[line.round, line.shard, line.attempt] = line
                case UpdatedLine():
                    told.updated[line.round, line.shard, line.attempt] = line
                case AttemptFailedLine():
                    told.failed[line.round, line.shard, line.attempt] = line
                case SavedLine():
                    told.saved[line.round, line.shard, line.step] = line.attempt
        return told


@dataclass(frozen=True, slots=True)
class PlacedAttempt:
    """An attempt and its place in the trace, in microseconds."""

    span: AttemptSpan
    track: Track
    begin_us: int
    end_us: int

    @property
    def key(self) -> Attempt:
        """The attempt's name in the record."""
        return self.span.round - 1, self.span.shard, self.span.attempt


def placed(spans: Iterable[AttemptSpan], processes: Mapping[str, int]) -> tuple[PlacedAttempt, ...]:
    """Give each attempt a track of its worker's process; return them by their beginning."""
    by_worker: defaultdict[str, list[AttemptSpan]] = defaultdict(list)
    for span in spans:
        by_worker[span.worker].append(span)
    found = []
    for worker, those in by_worker.items():
        times = [_times(span) for span in those]
        for span, (begin, end), lane in zip(those, times, lanes(times), strict=True):
            track = Track(processes[worker], FIRST_LANE + lane)
            found.append(PlacedAttempt(span, track, begin, end))
    return tuple(sorted(found, key=lambda one: one.begin_us))


def _times(span: AttemptSpan) -> tuple[int, int]:
    begin = microseconds(span.begin_seconds)
    # An arrow needs a moment inside the slice.
    return begin, max(begin + 1, microseconds(span.end_seconds))


def slices(attempts: Iterable[PlacedAttempt], told: AttemptLines) -> Iterator[TraceEvent]:
    """Yield a slice for each attempt, in order of their beginning."""
    for one in attempts:
        span = one.span
        yield TraceEvent(
            phase="X",
            name=f"round {span.round} shard {span.shard}",
            category=span.outcome,
            track=one.track,
            at_us=one.begin_us,
            duration_us=one.end_us - one.begin_us,
            args=_arguments(one, told),
        )


def _arguments(one: PlacedAttempt, told: AttemptLines) -> dict[str, Any]:
    """Return what a viewer shows of a selected slice; None for unknown values."""
    span, assigned = one.span, told.assigned[one.key]
    updated, failed = told.updated.get(one.key), told.failed.get(one.key)
    return {
        "round": span.round,
        "shard": span.shard,
        "attempt": span.attempt,
        "outcome": span.outcome,
        "why_assigned": assigned.reason,
        "from_step": assigned.from_step,
        "share": assigned.share,
        "forecast_q10_seconds": assigned.q10_seconds,
        "forecast_median_seconds": assigned.q50_seconds,
        "forecast_q90_seconds": assigned.q90_seconds,
        "steps": getattr(updated, "steps", None),
        "samples": getattr(updated, "samples", None),
        "loss": getattr(updated, "loss", None),
        "load_seconds": getattr(updated, "load_seconds", None),
        "train_seconds": getattr(updated, "train_seconds", None),
        "publish_seconds": getattr(updated, "publish_seconds", None),
        "update_bytes": getattr(updated, "bytes", None),
        "ended_as": getattr(failed, "failure", None),
        "why_ended": getattr(failed, "reason", None),
        "last_of_round": span.last or None,
    }


def arrows(
    attempts: Sequence[PlacedAttempt], told: AttemptLines
) -> tuple[list[TraceEvent], list[TraceEvent]]:
    """Return the starts and the ends of the arrows between attempts at the same task.

    An arrow leads from the attempt whose work continued to the one that took it over. Both lists
    are in order of time.
    """
    starts, ends = [], []
    for number, (before, after) in enumerate(_continued(attempts, told), 1):
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


def _continued(
    attempts: Iterable[PlacedAttempt], told: AttemptLines
) -> Iterator[tuple[PlacedAttempt, PlacedAttempt]]:
    """Yield each attempt that continued another attempt's work, after that attempt."""

    def task(one: PlacedAttempt) -> tuple[int, int]:
        return one.span.round, one.span.shard

    for _, several in groupby(sorted(attempts, key=task), key=task):
        earlier: dict[int, PlacedAttempt] = {}
        for one in several:
            before = _before(one, earlier, told)
            if before is not None:
                yield before, one
            earlier[one.span.attempt] = one


def _before(
    one: PlacedAttempt, earlier: dict[int, PlacedAttempt], told: AttemptLines
) -> PlacedAttempt | None:
    """Return the attempt whose snapshot it began from, or that moved before it had a snapshot."""
    last = earlier[next(reversed(earlier))] if earlier else None
    from_step = told.assigned[one.key].from_step
    if from_step:
        saver = told.saved.get((*one.key[:2], from_step))
        return earlier.get(saver, last) if saver is not None else last
    return last if last is not None and last.span.outcome == "moved" else None
