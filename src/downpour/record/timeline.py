"""The workers in a record: their tasks over time, their changes, and the decisions about them.

Seconds count from the first assignment, on the manager's clock.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from downpour.base.states import BLAMELESS, FailureKind
from downpour.record.attempt_lines import (
    AssignedLine,
    AttemptFailedLine,
    ContradictedLine,
    HandOverAskedLine,
    ResourcesUsedLine,
    UpdatedLine,
)
from downpour.record.record_lines import (
    AggregatedLine,
    CancelledLine,
    DisturbedLine,
    DroppedLine,
    ExplainedLine,
    FailedLine,
    FinishedLine,
    OtherPackagesLine,
    RecordLine,
    ResizedLine,
    SubmittedLine,
    WorkerJoinedLine,
    WorkerLeftLine,
    WorkerRequestedLine,
)

Outcome = Literal["trained", "moved", "stopped", "failed", "open"]
"""How an attempt ended: a `moved` one continued elsewhere, a `stopped` one became needless."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptSpan:
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


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceSample:
    """The resources that a worker's process used at a moment during training.

    `cpu_share` is 1.0 for one full core. `memory_bytes` are resident. `io_wait` is the share, in
    0..1, of the machine's processor time that waited for disks.
    """

    worker: str
    at_seconds: float
    cpu_share: float
    memory_bytes: int
    threads: int
    io_wait: float


def attempt_spans(record: Sequence[tuple[float, RecordLine]]) -> tuple[AttemptSpan, ...]:
    """List the attempts in the order in which they began."""
    begun: dict[tuple[int, int, int], tuple[float, AssignedLine]] = {}
    ended: dict[tuple[int, int, int], tuple[float, Outcome]] = {}
    settled: dict[tuple[int, int], float] = {}
    closed: dict[int, float] = {}
    for at, fact in record:
        match fact:
            case AssignedLine():
                begun[fact.round, fact.shard, fact.attempt] = at, fact
            case UpdatedLine():
                ended[fact.round, fact.shard, fact.attempt] = at, "trained"
                settled[fact.round, fact.shard] = at
            case AttemptFailedLine():
                key = fact.round, fact.shard, fact.attempt
                # If its update was lost or refused later, its work had ended with that update.
                done, _ = ended.get(key, (at, ""))
                if key in ended:
                    settled.pop(key[:2], None)
                ended[key] = done, _outcome(fact.failure)
            case AggregatedLine():
                closed[fact.round] = at
    if not begun:
        return ()
    start, end = min(at for at, _ in begun.values()), record[-1][0]
    spans = []
    for key, (at, fact) in begun.items():
        needless = settled.get(key[:2], closed.get(fact.round))
        unended: tuple[float, Outcome] = (
            (end, "open") if needless is None else (needless, "stopped")
        )
        until, outcome = ended.get(key, unended)
        spans.append(
            AttemptSpan(
                worker=fact.worker,
                round=fact.round + 1,
                shard=fact.shard,
                attempt=fact.attempt,
                begin_seconds=at - start,
                end_seconds=max(at, until) - start,
                outcome=outcome,
            )
        )
    return tuple(sorted(_with_last(spans), key=lambda span: (span.begin_seconds, span.shard)))


def disturbed_seconds(record: Sequence[tuple[float, RecordLine]]) -> tuple[float, ...]:
    """List when someone slowed or killed a process on purpose; below 0 before any assignment."""
    start = next((at for at, fact in record if isinstance(fact, AssignedLine)), 0.0)
    return tuple(at - start for at, fact in record if isinstance(fact, DisturbedLine))


def _outcome(failure: str) -> Outcome:
    """Distinguish moves, and attempts that were no longer needed, from failures."""
    if failure == FailureKind.CANCELLED:
        return "stopped"
    return "moved" if failure in BLAMELESS else "failed"


def resources(record: Sequence[tuple[float, RecordLine]]) -> tuple[ResourceSample, ...]:
    """List the samples of the workers' resources in order of time."""
    start = min((at for at, fact in record if isinstance(fact, AssignedLine)), default=0.0)
    samples = [
        ResourceSample(
            worker=fact.worker,
            at_seconds=sample.at_seconds - start,
            cpu_share=sample.cpu_share,
            memory_bytes=sample.memory_bytes,
            threads=sample.threads,
            io_wait=sample.io_wait,
        )
        for _, fact in record
        if isinstance(fact, ResourcesUsedLine)
        for sample in fact.samples
    ]
    return tuple(sorted(samples, key=lambda sample: (sample.at_seconds, sample.worker)))


def _with_last(spans: Sequence[AttemptSpan]) -> list[AttemptSpan]:
    """Mark the update that each round waited for, if there were several."""
    last: dict[int, AttemptSpan] = {}
    sizes: dict[int, int] = {}
    for span in spans:
        if span.outcome == "trained":
            sizes[span.round] = sizes.get(span.round, 0) + 1
            if span.round not in last or span.end_seconds > last[span.round].end_seconds:
                last[span.round] = span
    marked = {id(span) for number, span in last.items() if sizes[number] > 1}
    return [replace(span, last=id(span) in marked) for span in spans]


def worker_changes_of(record: Iterable[tuple[float, RecordLine]]) -> tuple[str, ...]:
    """Return a line for each change, in the order in which they happened.

    Workers that were present when work began have no line. Nor has a worker that registers again
    after the manager restarted.
    """
    return tuple(_changes(record))


def _changes(record: Iterable[tuple[float, RecordLine]]) -> Iterator[str]:
    here, began, at_work = set[str](), 0.0, False
    for at_seconds, fact in record:
        after = f"after {at_seconds - began:.1f} s"
        match fact:
            case SubmittedLine():
                began = at_seconds
            case AssignedLine():
                at_work = True
            case WorkerJoinedLine(worker=name):
                if name not in here and at_work:
                    yield f"{name} joined {after}"
                here.add(name)
            case WorkerLeftLine(worker=name):
                here.discard(name)
                yield f"{name} {'was lost' if fact.lost else 'left'} {after}: {fact.reason}"
            case OtherPackagesLine():
                yield f"{fact.worker} has {'; '.join(fact.packages)}"
            case DisturbedLine():
                yield f"{fact} on purpose, {after}"
            case _:
                pass


DecisionKind = Literal["hand-over", "drop", "resize", "worker", "differ", "disturb", "wait", "end"]


@dataclass(frozen=True, slots=True)
class ToldDecision:
    """A decision: its kind, a few words, and details; the detail `reason` says why."""

    kind: DecisionKind
    name: str
    details: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        reason = self.details.get("reason") or self.details.get("what")
        return f"{self.name}: {reason}" if reason else self.name


def decision(line: RecordLine) -> ToldDecision | None:  # noqa: C901, PLR0911 - one arm a line
    """Return the decision in a line; None if the line is no decision."""
    match line:
        case HandOverAskedLine():
            task = {"round": line.round + 1, "shard": line.shard, "attempt": line.attempt}
            name = f"hand over from {line.worker} to {line.meant_for}"
            return ToldDecision("hand-over", name, {**task, "reason": line.reason})
        case DroppedLine():
            shards = ", ".join(map(str, line.shards))
            name = f"close round {line.round + 1} without shards {shards}"
            return ToldDecision("drop", name, {"round": line.round + 1, "reason": line.reason})
        case ResizedLine():
            details = {"samples": list(line.samples), "reason": line.reason}
            name = f"resize round {line.round + 1}"
            return ToldDecision("resize", name, {"round": line.round + 1, **details})
        case WorkerRequestedLine():
            return ToldDecision("worker", "ask for one more worker", {"reason": line.reason})
        case ExplainedLine(shard=None):
            return ToldDecision("wait", line.reason, {"round": line.round + 1})
        case ExplainedLine():
            where = {"round": line.round + 1, "shard": line.shard}
            name = f"shard {line.shard} stays at {line.worker}"
            return ToldDecision("wait", name, {**where, "reason": line.reason})
        case DisturbedLine():
            return ToldDecision("disturb", f"disturb {line.who}", {"what": str(line)})
        case ContradictedLine():
            return ToldDecision("differ", "updates differ", {"reason": str(line)})
        case FinishedLine():
            return ToldDecision("end", "finished", {"reason": line.reason or None})
        case FailedLine() | CancelledLine():
            name = "failed" if isinstance(line, FailedLine) else "cancelled"
            return ToldDecision("end", name, {"reason": line.reason})
        case _:
            return None
