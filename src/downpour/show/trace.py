"""Turns an experiment's record into the events of a trace, in order of time.

The spans are those of the report's timeline (`record/timeline.py`). We make slices, instants and
counters one at a time. Only the record, and a place for each attempt and arrow, stay in memory.
"""

import heapq
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from downpour.base.errors import SpecError
from downpour.base.states import BLAMELESS
from downpour.files.store.publish import explain, replacing
from downpour.record import record_lines as told
from downpour.record.study_result import natural
from downpour.record.tables import Tables
from downpour.show import tracks

_EVENTS = 1000
"""The thread of a worker's instants: Perfetto would tie an arrow to an instant beside its slice."""
_NAMING = told.AssignedLine | told.AttemptFailedLine | told.SavedLine | told.WorkerLeftLine


def trace_events(record: Sequence[told.Dated]) -> Iterator[tracks.TraceEvent]:
    """Yield the names of all tracks, then all events in order of time."""
    if not record:
        return
    tables, relative = Tables.of(record), _relative(record)
    hosts = _hosts(record, tables)
    processes = {
        name: 1 + tracks.PROCESS + place for place, name in enumerate(sorted(hosts, key=natural))
    }
    attempts = tracks.placed(tables, processes)
    managers, threads = tracks.manager_slices(tables, now=relative[-1][0])
    yield from tracks.named(tracks.Track(tracks.PROCESS), "manager", threads)
    used = dict.fromkeys(processes.values(), tracks.FIRST_LANE)  # the last thread of each
    for one in attempts:
        used[one.track.process] = max(used[one.track.process], one.track.thread)
    for worker, process in processes.items():
        host = f" ({hosts[worker]})" if hosts[worker] else ""
        threads = [
            *tracks.tracks_of(tracks.FIRST_LANE, "attempts", used[process] - tracks.FIRST_LANE + 1),
            (_EVENTS, "events"),
        ]
        yield from tracks.named(tracks.Track(process), f"{worker}{host}", threads)
    starts, ends = tracks.arrows(attempts)
    # At equal times, slices come first, because they contain arrows and instants.
    yield from heapq.merge(
        managers,
        tracks.slices(attempts),
        starts,
        ends,
        _instants(relative, processes),
        tracks.decisions(relative),
        tracks.counters(relative),
        key=lambda event: event.at_us,
    )


def _relative(record: Sequence[told.Dated]) -> tracks.Relative:
    """Return the record in order of time, from the first assignment or else from its first line."""
    assigned = (at for at, line in record if isinstance(line, told.AssignedLine))
    start = min(assigned, default=record[0][0])
    # A record is in the order of writing, and a line may be about an earlier moment.
    return sorted(((at - start, line) for at, line in record), key=lambda dated: dated[0])


def _hosts(record: Iterable[told.Dated], tables: Tables) -> dict[str, str]:
    """Return each worker that the record names, with its host; empty if unknown."""
    hosts = {line.worker: "" for _, line in record if isinstance(line, _NAMING)}
    for worker, joined in tables.joined.items():
        hosts[worker] = joined.address.rpartition(":")[0].strip("[]")
    return hosts


def _instants(record: tracks.Relative, processes: Mapping[str, int]) -> Iterator[tracks.TraceEvent]:
    """Yield the workers' momentary events: failures, snapshots, arrivals and departures."""
    for at, line in record:
        said = _said(line)
        if said is None or (at <= 0 and isinstance(line, told.WorkerJoinedLine)):
            continue
        worker, name, why = said
        track = tracks.Track(processes[worker], _EVENTS)
        args: dict[str, object] = {"reason": why}
        if isinstance(line, told.AttemptFailedLine | told.SavedLine):
            args |= {"round": line.round + 1, "shard": line.shard, "attempt": line.attempt}
        yield tracks.TraceEvent(
            phase="i", name=name, track=track, at_us=tracks.microseconds(at), args=args
        )


def _said(line: told.RecordLine) -> tuple[str, str, str | None] | None:
    """Return a worker, what happened to it, and why; None for lines about something else."""
    match line:
        case told.AttemptFailedLine() if line.failure not in BLAMELESS:
            return line.worker, f"failed: {line.failure}", line.reason
        case told.SavedLine():
            return line.worker, f"snapshot at step {line.step}", None
        case told.WorkerLeftLine():
            return line.worker, "worker lost" if line.lost else "worker left", line.reason
        case told.WorkerJoinedLine():
            return line.worker, "worker joined", None
        case _:
            return None


TRACE_NAME = "trace.json"
_HEAD = '{"displayTimeUnit": "ms", "otherData": {"made by": "downpour trace"'
"""How every trace begins; we never replace a file that begins otherwise."""


def trace_lines(record: Sequence[told.Dated]) -> Iterator[str]:
    """Yield the lines of a trace, one per event, with their ends; together they are a JSON object.

    The memory for this does not grow with the text.
    """
    of = json.dumps(_about(record), allow_nan=False)[1:]
    yield f'{_HEAD}, {of}, "traceEvents": [\n'
    before = ""
    for event in trace_events(record):
        yield f"{before}{event.to_json()}"
        before = ",\n"
    yield "\n]}\n"


def _about(record: Sequence[told.Dated]) -> dict[str, object]:
    for _, line in record:
        if isinstance(line, told.SubmittedLine):
            own = {"experiment": line.experiment, "name": line.name, "version": line.version}
            return tracks.known({**own, "shards": line.shards})
    return {"experiment": ""}


def write_trace(record: Sequence[told.Dated], path: Path) -> None:
    """Write a trace, whole or not at all, replacing one that an earlier call wrote."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists() and not _is_trace(path):
            accepted = "exists and is not a trace from downpour; choose another file"
            raise SpecError("to", str(path), accepted)
        with replacing(path) as part, part.open("x", encoding="ascii") as file:
            file.writelines(trace_lines(record))
    except OSError as error:
        raise SpecError("to", str(path), f"cannot be written: {explain(error)}") from None


def _is_trace(path: Path) -> bool:
    if not path.is_file():  # opening a FIFO would block
        return False
    with path.open("rb") as file:
        return file.read(len(_HEAD)) == _HEAD.encode()
