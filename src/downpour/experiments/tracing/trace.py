"""Turns an experiment's record into the events of a trace, in order of time.

The spans are those of the report's timeline (`reading/timeline.py`). We make slices, instants and
counters one at a time. Only the record, and a place for each attempt and arrow, stay in memory.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Mapping, Sequence

from downpour.base.states import BLAMELESS
from downpour.experiments.reading.study_result import natural
from downpour.experiments.reading.timeline import attempt_spans
from downpour.experiments.tracing.attempts import (
    FIRST_LANE,
    AttemptLines,
    PlacedAttempt,
    arrows,
    placed,
    slices,
)
from downpour.experiments.tracing.events import TraceEvent, Track, microseconds, named, tracks_of
from downpour.experiments.tracing.manager_track import (
    PROCESS,
    Relative,
    counters,
    decisions,
    manager_slices,
)
from downpour.files.records.attempt_lines import AssignedLine, AttemptFailedLine, SavedLine
from downpour.files.records.record_lines import RecordLine, WorkerJoinedLine, WorkerLeftLine

_EVENTS = 1000
"""The thread of a worker's instants: Perfetto would tie an arrow to an instant beside its slice."""


def trace_events(record: Sequence[tuple[float, RecordLine]]) -> Iterator[TraceEvent]:
    """Yield the names of all tracks, then all events in order of time."""
    if not record:
        return
    spans = attempt_spans(record)
    relative = _relative(record)
    told = AttemptLines.of(record)
    hosts = _hosts(record)
    processes = {name: 1 + PROCESS + place for place, name in enumerate(sorted(hosts, key=natural))}
    attempts = placed(spans, processes)
    manager = manager_slices(relative, spans)
    yield from named(Track(PROCESS), "manager", manager.threads)
    used = _lanes_used(processes.values(), attempts)
    for worker, process in processes.items():
        host = f" ({hosts[worker]})" if hosts[worker] else ""
        threads = [*tracks_of(FIRST_LANE, "attempts", used[process]), (_EVENTS, "events")]
        yield from named(Track(process), f"{worker}{host}", threads)
    starts, ends = arrows(attempts, told)
    # At equal times, slices come first, because they contain arrows and instants.
    yield from heapq.merge(
        manager.events,
        slices(attempts, told),
        starts,
        ends,
        _instants(relative, processes),
        decisions(relative),
        counters(relative),
        key=lambda event: event.at_us,
    )


def _relative(record: Sequence[tuple[float, RecordLine]]) -> Relative:
    """Return the record in order of time, from the first assignment or else from its first line."""
    assigned = (at for at, line in record if isinstance(line, AssignedLine))
    start = min(assigned, default=record[0][0])
    # A record is in the order of writing, and a line may be about an earlier moment.
    return sorted(((at - start, line) for at, line in record), key=lambda dated: dated[0])


def _hosts(record: Iterable[tuple[float, RecordLine]]) -> dict[str, str]:
    """Return each worker that the record names, with its host; empty if unknown."""
    hosts: dict[str, str] = {}
    for _, line in record:
        match line:
            case WorkerJoinedLine():
                hosts[line.worker] = line.address.rpartition(":")[0].strip("[]")
            case AssignedLine() | AttemptFailedLine() | SavedLine() | WorkerLeftLine():
                hosts.setdefault(line.worker, "")
    return hosts


def _lanes_used(processes: Iterable[int], attempts: Iterable[PlacedAttempt]) -> dict[int, int]:
    """Return how many tracks each worker's attempts take, at least one."""
    used = dict.fromkeys(processes, 1)
    for one in attempts:
        process, thread = one.track
        used[process] = max(used[process], thread - FIRST_LANE + 1)
    return used


def _instants(record: Relative, processes: Mapping[str, int]) -> Iterator[TraceEvent]:
    """Yield the workers' momentary events: failures, snapshots, arrivals and departures."""
    for at, line in record:
        said = _said(line)
        if said is None or (at <= 0 and isinstance(line, WorkerJoinedLine)):
            continue
        worker, name, why = said
        track = Track(processes[worker], _EVENTS)
        args: dict[str, object] = {"reason": why}
        if isinstance(line, AttemptFailedLine | SavedLine):
            args |= {"round": line.round + 1, "shard": line.shard, "attempt": line.attempt}
        yield TraceEvent(phase="i", name=name, track=track, at_us=microseconds(at), args=args)


def _said(line: RecordLine) -> tuple[str, str, str | None] | None:
    """Return a worker, what happened to it, and why; None for lines about something else."""
    match line:
        case AttemptFailedLine() if line.failure not in BLAMELESS:
            return line.worker, f"failed: {line.failure}", line.reason
        case SavedLine():
            return line.worker, f"snapshot at step {line.step}", None
        case WorkerLeftLine():
            return line.worker, "worker lost" if line.lost else "worker left", line.reason
        case WorkerJoinedLine():
            return line.worker, "worker joined", None
        case _:
            return None
