"""Lines of a record that a test writes by hand: it names only what it is about."""

from typing import Any

from downpour.record import record_lines as told
from downpour.record.rows import Rows
from downpour.record.tables import Tables
from downpour.record.timeline import Cost
from tests.specs import stored_spec


def submitted(shards: int = 2, name: str = "e", **spec: Any) -> told.SubmittedLine:
    """An experiment whose spec has these fields; its name is its ID as well."""
    fields = stored_spec(name=name, shards=shards, **spec)
    return told.SubmittedLine(experiment=name, name=name, spec=fields, version="1", shards=shards)


def prepared(*samples: int, **fields: Any) -> told.PreparedLine:
    """Shards of these sizes."""
    known: dict[str, Any] = {"train_samples": sum(samples), "test_samples": 1, "classes": 2}
    known |= {"prepare_seconds": 0.0, "split_seconds": 0.0, "bytes": 1, "parameters": 1}
    known |= {"numeric_class": "", "dataset": "", "checksum": ""}
    return told.PreparedLine(shard_samples=samples, **{**known, **fields})


def joined(worker: str, numeric_class: str = "any", **fields: Any) -> told.WorkerJoinedLine:
    """A worker that computes in this class."""
    known = {"address": "127.0.0.1:1", "numeric_class": numeric_class, **fields}
    return told.WorkerJoinedLine(worker=worker, **known)


def left(worker: str, reason: str, *, lost: bool = False) -> told.WorkerLeftLine:
    """The end of a worker."""
    return told.WorkerLeftLine(worker=worker, reason=reason, lost=lost)


def assigned(shard: int, attempt: int = 0, worker: str = "a", **fields: Any) -> told.AssignedLine:
    """An attempt at a shard of the first round."""
    known: dict[str, Any] = {"round": 0, "reason": "", **fields}
    return told.AssignedLine(shard=shard, attempt=attempt, worker=worker, **known)


def saved(shard: int, attempt: int, step: int, worker: str = "a") -> told.SavedLine:
    """A snapshot of an attempt at a shard of the first round."""
    return told.SavedLine(round=0, shard=shard, attempt=attempt, worker=worker, step=step, bytes=1)


def updated(shard: int, attempt: int = 0, worker: str = "a", **fields: Any) -> told.UpdatedLine:
    """An update of a shard of the first round, which counts."""
    known: dict[str, Any] = {"round": 0, "samples": 100, "steps": 100, "loss": 1.0, "bytes": 1}
    known |= {"load_seconds": 0.0, "train_seconds": 1.0, "publish_seconds": 0.0, "checksum": ""}
    known |= {"completion_seconds": 1.0, **fields}
    return told.UpdatedLine(shard=shard, attempt=attempt, worker=worker, **known)


def failed(
    shard: int, attempt: int = 0, failure: str = "lost", worker: str = "a", **fields: Any
) -> told.AttemptFailedLine:
    """The failure of an attempt at a shard of the first round."""
    known: dict[str, Any] = {"round": 0, "reason": "gone", **fields}
    return told.AttemptFailedLine(
        shard=shard, attempt=attempt, worker=worker, failure=failure, **known
    )


def aggregated(number: int = 0, **fields: Any) -> told.AggregatedLine:
    """The version that a round became."""
    known: dict[str, Any] = {"file": f"model-{number + 1}", "checksum": f"m{number + 1}"}
    known |= {"bytes": 1, "seconds": 0.0, "train_seconds": 1.0, "loss": 1.0}
    known |= {"summed": "", "whole": True, **fields}
    return told.AggregatedLine(round=number, version=number + 1, **known)


def measured(number: int, loss: float, *classes: float) -> told.EvaluatedLine:
    """The loss and the accuracies of classes after a round, which are equally frequent."""
    metrics = {"accuracy": sum(classes) / len(classes)} if classes else {}
    return told.EvaluatedLine(
        round=number, loss=loss, metrics=metrics, class_accuracy=classes, seconds=0.1
    )


def finished(seconds: float) -> told.FinishedLine:
    """The end of an experiment that took so long."""
    file = "model.safetensors"
    return told.FinishedLine(file=file, total_seconds=seconds, reason="", checksum="")


def dated(*lines: told.RecordLine) -> list[told.Dated]:
    """The lines a second apart."""
    return [(float(second), line) for second, line in enumerate(lines)]


def folded(*record: told.Dated) -> Tables:
    """The tables of a record."""
    return Tables.of(record)


def costs_of(tables: Tables) -> dict[int, Cost]:
    """The costs of the rounds that have become a model."""
    rounds = Rows(tables).finished().rounds.values()
    return {row.number: row.cost for row in rounds if row.cost is not None}
