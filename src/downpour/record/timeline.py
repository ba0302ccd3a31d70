"""When each worker trained what, how workers came and went, and the decisions about them, in words.

Seconds count from the first assignment, on the manager's clock.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from operator import attrgetter
from typing import Any, Literal

import msgspec

from downpour.record import record_lines as told
from downpour.record.record_lines import Sample
from downpour.record.tables import Outcome, RecordedRound, Tables, WorkerChange


class AttemptSpan(msgspec.Struct, frozen=True, gc=False):
    """One attempt at a shard; `last` says whether the end of its round waited for it.

    Rounds count from 1, shards and attempts from 0.
    """

    worker: str
    round: int
    shard: int
    attempt: int
    begin_seconds: float
    end_seconds: float
    outcome: Outcome
    last: bool = False


_BEGIN = attrgetter("begin", "shard")
SpanFields = tuple[str, int, int, int, float, float, Outcome, bool]


def span_fields(of_round: RecordedRound, now: float) -> Iterator[SpanFields]:
    """Yield the fields of a round's spans in order, with seconds of the record's clock."""
    last = of_round.last()
    for attempt in sorted(of_round.assigned(), key=_BEGIN):
        assert attempt.assigned is not None  # noqa: S101 - as `assigned` says
        end, outcome = of_round.end_of(attempt)
        ended = max(attempt.begin, now if end is None else end)
        task = of_round.number, attempt.shard, attempt.number
        yield attempt.assigned.worker, *task, attempt.begin, ended, outcome, attempt is last


def span_of(start: float, fields: SpanFields) -> AttemptSpan:
    """Return the span of these fields, whose seconds count from the first assignment."""
    worker, number, shard, attempt, begin, end, outcome, last = fields
    seconds = begin - start, end - start
    return AttemptSpan(worker, number + 1, shard, attempt, *seconds, outcome, last)


def attempt_spans(tables: Tables) -> tuple[AttemptSpan, ...]:
    """List the attempts in the order in which they began."""
    rounds = tables.rounds.values()
    fields = (each for of_round in rounds for each in span_fields(of_round, tables.now))
    spans = (span_of(tables.start, each) for each in fields)
    return tuple(sorted(spans, key=attrgetter("begin_seconds", "shard")))


def disturbed_seconds(tables: Tables) -> tuple[float, ...]:
    """List when someone slowed or killed a process on purpose; below 0 before any assignment."""
    disturbed = (at for at, line in tables.changes if isinstance(line, told.DisturbedLine))
    return tuple(at - tables.start for at in disturbed)


def resources(tables: Tables) -> Mapping[str, Sequence[Sample]]:
    """Return the samples of each worker's resources in order of time."""
    for samples in tables.used.values():
        samples.make = partial(_sample, tables.start)
        samples.sort(0)
    return tables.used


def _sample(start: float, _: str, at: float, *others: Any) -> Sample:
    return Sample(at - start, *others)


def worker_changes(tables: Tables) -> tuple[str, ...]:
    """Return a line for each change of the workers, in the order in which they happened."""
    return tuple(_change(line, at - tables.submitted_at) for at, line in tables.changes)


def _change(line: WorkerChange, seconds: float) -> str:
    after = f"after {seconds:.1f} s"
    match line:
        case told.WorkerJoinedLine():
            return f"{line.worker} joined {after}"
        case told.WorkerLeftLine():
            return f"{line.worker} {'was lost' if line.lost else 'left'} {after}: {line.reason}"
        case told.OtherPackagesLine():
            return f"{line.worker} has {'; '.join(line.packages)}"
        case told.DisturbedLine():
            return f"{line} on purpose, {after}"


DecisionKind = Literal["hand-over", "drop", "resize", "worker", "differ", "disturb", "wait", "end"]


@dataclass(frozen=True, slots=True)
class RecordedDecision:
    """A decision: its kind, a few words, and details; the detail `reason` says why."""

    kind: DecisionKind
    name: str
    details: Mapping[str, Any]

    def __str__(self) -> str:
        reason = self.details.get("reason") or self.details.get("what")
        return f"{self.name}: {reason}" if reason else self.name


def decision(line: told.RecordLine) -> RecordedDecision | None:  # noqa: C901 - one arm a line
    """Return the decision in a line; None if the line is no decision."""
    kind: DecisionKind
    details: dict[str, Any] = {"reason": getattr(line, "reason", None) or None}
    match line:
        case told.HandOverAskedLine():
            kind, name = "hand-over", f"hand over from {line.worker} to {line.meant_for}"
            details = {"shard": line.shard, "attempt": line.attempt, **details}
        case told.DroppedLine():
            shards = ", ".join(map(str, line.shards))
            kind, name = "drop", f"close round {line.round + 1} without shards {shards}"
        case told.ResizedLine():
            kind, name = "resize", f"resize round {line.round + 1}"
            details = {"samples": list(line.samples), **details}
        case told.WorkerRequestedLine():
            kind, name = "worker", "ask for one more worker"
        case told.ExplainedLine(shard=None):
            kind, name, details = "wait", line.reason, {}
        case told.ExplainedLine():
            kind, name = "wait", f"shard {line.shard} stays at {line.worker}"
            details = {"shard": line.shard, **details}
        case told.DisturbedLine():
            kind, name, details = "disturb", f"disturb {line.who}", {"what": str(line)}
        case told.ContradictedLine():
            return RecordedDecision("differ", "updates differ", {"reason": str(line)})
        case told.FinishedLine():
            kind, name = "end", "finished"
        case told.FailedLine() | told.CancelledLine():
            kind, name = "end", "failed" if isinstance(line, told.FailedLine) else "cancelled"
        case _:
            return None
    of_round = {"round": line.round + 1} if hasattr(line, "round") else {}
    return RecordedDecision(kind, name, {**of_round, **details})
