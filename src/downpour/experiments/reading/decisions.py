"""Decisions of the manager and its policy, and the end of an experiment, in words."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from downpour.files.records.attempt_lines import ContradictedLine, HandOverAskedLine
from downpour.files.records.record_lines import (
    CancelledLine,
    DisturbedLine,
    DroppedLine,
    ExplainedLine,
    FailedLine,
    FinishedLine,
    RecordLine,
    ResizedLine,
    WorkerRequestedLine,
)

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
