"""Lines of a record that a test writes by hand: it names only what it is about."""

from __future__ import annotations

from typing import Any

from downpour.record.record_lines import (
    AggregatedLine,
    AssignedLine,
    AttemptFailedLine,
    Dated,
    PreparedLine,
    RecordLine,
    SavedLine,
    SubmittedLine,
    UpdatedLine,
    WorkerJoinedLine,
    WorkerLeftLine,
)
from downpour.record.rows import Rows
from downpour.record.tables import Tables
from downpour.record.timeline import Cost
from tests.specs import stored_spec


def submitted(shards: int = 2, **spec: Any) -> SubmittedLine:
    """An experiment `e` whose spec has these fields."""
    fields = stored_spec(**spec)
    return SubmittedLine(experiment="e", name="e", spec=fields, version="1", shards=shards)


def prepared(*samples: int, **fields: Any) -> PreparedLine:
    """Shards of these sizes."""
    known: dict[str, Any] = {"train_samples": sum(samples), "test_samples": 1, "classes": 2}
    known |= {"prepare_seconds": 0.0, "split_seconds": 0.0, "bytes": 1, "parameters": 1}
    known |= {"numeric_class": "", "dataset": "", "checksum": ""}
    return PreparedLine(shard_samples=samples, **{**known, **fields})


def joined(worker: str, numeric_class: str = "any", **fields: Any) -> WorkerJoinedLine:
    """A worker that computes in this class."""
    known = {"address": "127.0.0.1:1", "numeric_class": numeric_class, **fields}
    return WorkerJoinedLine(worker=worker, **known)


def left(worker: str, reason: str, *, lost: bool = False) -> WorkerLeftLine:
    """The end of a worker."""
    return WorkerLeftLine(worker=worker, reason=reason, lost=lost)


def assigned(shard: int, attempt: int = 0, worker: str = "a", **fields: Any) -> AssignedLine:
    """An attempt at a shard of the first round."""
    known: dict[str, Any] = {"round": 0, "reason": "", **fields}
    return AssignedLine(shard=shard, attempt=attempt, worker=worker, **known)


def saved(shard: int, attempt: int, step: int, worker: str = "a") -> SavedLine:
    """A snapshot of an attempt at a shard of the first round."""
    return SavedLine(round=0, shard=shard, attempt=attempt, worker=worker, step=step, bytes=1)


def updated(shard: int, attempt: int = 0, worker: str = "a", **fields: Any) -> UpdatedLine:
    """An update of a shard of the first round, which counts."""
    known: dict[str, Any] = {"round": 0, "samples": 100, "steps": 100, "loss": 1.0, "bytes": 1}
    known |= {"load_seconds": 0.0, "train_seconds": 1.0, "publish_seconds": 0.0, "checksum": ""}
    known |= {"completion_seconds": 1.0, **fields}
    return UpdatedLine(shard=shard, attempt=attempt, worker=worker, **known)


def failed(
    shard: int, attempt: int = 0, failure: str = "lost", worker: str = "a", **fields: Any
) -> AttemptFailedLine:
    """The failure of an attempt at a shard of the first round."""
    known: dict[str, Any] = {"round": 0, "reason": "gone", **fields}
    return AttemptFailedLine(shard=shard, attempt=attempt, worker=worker, failure=failure, **known)


def aggregated(number: int = 0, **fields: Any) -> AggregatedLine:
    """The version that a round became."""
    known: dict[str, Any] = {"file": f"model-{number + 1}", "checksum": f"m{number + 1}"}
    known |= {"bytes": 1, "seconds": 0.0, "train_seconds": 1.0, "loss": 1.0}
    known |= {"summed": "", "whole": True, **fields}
    return AggregatedLine(round=number, version=number + 1, **known)


def dated(*lines: RecordLine) -> list[Dated]:
    """The lines a second apart."""
    return [(float(second), line) for second, line in enumerate(lines)]


def folded(*record: Dated) -> Tables:
    """The tables of a record."""
    return Tables.of(record)


def costs_of(tables: Tables) -> dict[int, Cost]:
    """The costs of the rounds that have become a model."""
    rounds = Rows(tables).finished().rounds.values()
    return {row.number: row.cost for row in rounds if row.cost is not None}
