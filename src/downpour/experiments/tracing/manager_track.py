"""The manager's tracks of a trace: rounds, aggregations, evaluations, decisions and counters."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from downpour.base.evaluations import LOSS
from downpour.experiments.reading.decisions import decision
from downpour.experiments.reading.measures import Measure
from downpour.experiments.reading.timeline import AttemptSpan
from downpour.experiments.tracing.events import TraceEvent, Track, lanes, microseconds, tracks_of
from downpour.files.records.attempt_lines import (
    AttemptFailedLine,
    UpdatedLine,
)
from downpour.files.records.record_lines import (
    AggregatedLine,
    EvaluatedLine,
    RecordLine,
)

Relative = Sequence[tuple[float, RecordLine]]
"""A record in order of time, in seconds since the first assignment."""

PROCESS = 1
DECISIONS = Track(PROCESS, 1)
_ROWS = {"rounds": 1_000_000, "aggregations": 2_000_000, "evaluations": 3_000_000}
"""The number of the first thread of each; overlapping rounds take the following ones."""


@dataclass(frozen=True, slots=True)
class ManagerSlices:
    """The slices of the manager's tracks in order of time, and the names of these tracks."""

    events: tuple[TraceEvent, ...]
    threads: tuple[tuple[int, str], ...]


def manager_slices(record: Relative, spans: Sequence[AttemptSpan]) -> ManagerSlices:
    """Return rounds, aggregations and evaluations; of repeated lines, the latest counts."""
    versions = {line.version: (at, line) for at, line in record if isinstance(line, AggregatedLine)}
    measured = {
        (line.round, line.part): (at, line)
        for at, line in record
        if isinstance(line, EvaluatedLine)
    }
    rows = {
        "rounds": _rounds(record, spans),
        "aggregations": [_aggregation(at, line) for at, line in versions.values()],
        "evaluations": [_evaluation(at, line) for at, line in measured.values()],
    }
    events, threads = [], [(DECISIONS.thread, "decisions")]
    for row, several in rows.items():
        several.sort(key=lambda one: one.at_us)
        numbers = lanes((one.at_us, one.at_us + (one.duration_us or 0)) for one in several)
        for one, lane in zip(several, numbers, strict=True):
            events.append(replace(one, track=Track(PROCESS, _ROWS[row] + lane)))
        threads += tracks_of(_ROWS[row], row, max(numbers, default=-1) + 1)
    events.sort(key=lambda one: one.at_us)
    return ManagerSlices(tuple(events), tuple(threads))


def _rounds(record: Relative, spans: Sequence[AttemptSpan]) -> list[TraceEvent]:
    """Return each round, from its first assignment to the last version made of its updates."""
    begun: dict[int, float] = {}
    for span in spans:
        begun[span.round] = min(begun.get(span.round, span.begin_seconds), span.begin_seconds)
    ended: dict[int, float] = {}
    for at, line in record:
        if isinstance(line, AggregatedLine):
            numbers = {number for number, _ in line.parts} or {line.round}
            ended.update(dict.fromkeys((number + 1 for number in numbers), at))
    now = record[-1][0] if record else 0.0
    return [
        _slice(f"round {number}", at, ended.get(number, now), round=number)
        for number, at in begun.items()
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
    waiting: dict[tuple[int, int], int] = {}
    yield _counter("updates waiting", 0.0, 0)
    for at, line in record:
        before = len(waiting)
        _wait(waiting, line)
        if len(waiting) != before:
            yield _counter("updates waiting", at, len(waiting))
        for name, value in _measured(line):
            if math.isfinite(value):
                yield _counter(name, at, value)


def _wait(waiting: dict[tuple[int, int], int], line: RecordLine) -> None:
    """Note the tasks whose update the manager has not used yet, and the attempts they come from."""
    match line:
        case UpdatedLine():
            waiting[line.round, line.shard] = line.attempt
        case AttemptFailedLine():
            # An update that was lost later no longer waits.
            if waiting.get((line.round, line.shard)) == line.attempt:
                del waiting[line.round, line.shard]
        case AggregatedLine():
            whole_round = {task for task in waiting if task[0] == line.round}
            for task in set(line.parts) or whole_round:
                waiting.pop(task, None)


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
