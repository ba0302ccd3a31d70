"""The closed list of the lines that an experiment's record is made of.

Writers and readers share these types, so a report never guesses at keys. Rounds and shards count
from 0 here; reports show rounds to people as epochs from 1. Seconds are the manager's clock unless
a field says otherwise. A line is never changed once written. A kind may gain fields with defaults,
and readers skip kinds and fields that they do not know.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, NamedTuple

from pydantic import BeforeValidator, TypeAdapter

from downpour.base.values import Part

Measured = Annotated[float, BeforeValidator(lambda value: math.nan if value is None else value)]
"""A number that may be NaN or infinite; both are null in JSON, which has neither."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SubmittedLine:
    """The manager accepted an experiment; `spec` holds the fields of the resolved spec."""

    experiment: str
    name: str
    spec: dict[str, Any]
    version: str
    shards: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerJoinedLine:
    """A worker may be given tasks from now on."""

    worker: str
    address: str
    numeric_class: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerLeftLine:
    """A worker was `lost`, or left by itself; old records do not say which."""

    worker: str
    reason: str
    lost: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedLine:
    """Dataset, split and initial model are ready; `bytes` is the model file's size.

    `numeric_class` is that of the manager, which made the initial model; empty in old records.
    `dataset` is the key of the prepared dataset, `understood` describes how it was read, and
    `remarks` are its oddities, and `warnings` name fields of the spec without an effect. A training
    step took `step_seconds` and `step_bytes` of memory when it was tried; `frozen_bytes` is the
    size of the file with what is never trained. `checksum` is the initial model's; empty in old
    records.
    """

    train_samples: int
    test_samples: int
    classes: int
    shard_samples: tuple[int, ...]
    prepare_seconds: float
    split_seconds: float
    bytes: int
    parameters: int
    numeric_class: str = ""
    dataset: str = ""
    understood: str = ""
    remarks: tuple[str, ...] = ()
    step_seconds: float | None = None
    step_bytes: int | None = None
    frozen_bytes: int = 0
    checksum: str = ""
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class AssignedLine:
    """A worker was given a task, and why that worker; `from_step` is where a snapshot ends.

    `share` is how much of the task's steps it trains.

    The quantiles are the forecast of the seconds from here to its update, which stay below
    `q10_seconds` with probability 0.1, and so on; None if there was no forecast.
    """

    round: int
    shard: int
    attempt: int
    worker: str
    reason: str
    from_step: int = 0
    share: float = 1.0
    q10_seconds: float | None = None
    q50_seconds: float | None = None
    q90_seconds: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ForeseenLine:
    """The forecast of a running attempt.

    Recorded after each quarter of its work, and when another worker is to continue it; more lines
    would let the record grow. `done` is the share of the shard, in 0..1, that was trained
    `elapsed_seconds` after the assignment. The quantiles are those of all seconds from the
    assignment to the update, as in `AssignedLine`.
    """

    round: int
    shard: int
    attempt: int
    worker: str
    done: float
    elapsed_seconds: float
    q10_seconds: float | None = None
    q50_seconds: float | None = None
    q90_seconds: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedLine:
    """An attempt published a snapshot after `step` steps; the next worker continues from it."""

    round: int
    shard: int
    attempt: int
    worker: str
    step: int
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class HandOverAskedLine:
    """A worker was asked to hand an attempt over to another worker, and why."""

    round: int
    shard: int
    attempt: int
    worker: str
    meant_for: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DroppedLine:
    """A round was closed without these shards, and why."""

    round: int
    shards: tuple[int, ...]
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ResizedLine:
    """A round was cut into shards of these sizes, in samples, and why."""

    round: int
    samples: tuple[int, ...]
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerRequestedLine:
    """A policy asked for one more worker, and why; it may be that none is started."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ContradictedLine:
    """Two attempts at one shard gave different bytes; the update that was accepted first counts.

    These workers do not compute alike, so this experiment is not repeatable to the byte.
    """

    round: int
    shard: int
    attempt: int
    worker: str
    accepted_from: str
    checksum: str
    accepted_checksum: str

    def __str__(self) -> str:
        return (
            f"round {self.round + 1} shard {self.shard}: {self.worker} and {self.accepted_from} "
            "made different updates of it, so they do not compute alike; the first counts"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdatedLine:
    """An attempt published its update, which counts.

    Load, train and publish seconds are the worker's clock; `completion_seconds` run from the
    assignment to the report. `checksum` is the update's; empty in old records.
    """

    round: int
    shard: int
    attempt: int
    worker: str
    samples: int
    steps: int
    loss: Measured
    load_seconds: float
    train_seconds: float
    publish_seconds: float
    completion_seconds: float
    bytes: int
    checksum: str = ""


class Sample(NamedTuple):
    """What a process used at a moment of the manager's clock; a list in JSON, to be short.

    `cpu_share` is 1.0 for one core in full, averaged since the heartbeat before; `memory_bytes` are
    resident; `io_wait` is the share, in 0..1, of the machine's processor time spent waiting for
    disks.
    """

    at_seconds: float
    cpu_share: float
    memory_bytes: int
    threads: int
    io_wait: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourcesUsedLine:
    """What an attempt's process used while it trained, from its worker's heartbeats.

    Of a long attempt every second sample is kept, or fewer, spread over all of its time.
    """

    round: int
    shard: int
    attempt: int
    worker: str
    samples: tuple[Sample, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptFailedLine:
    """An attempt failed; `failure` is its kind in a word."""

    round: int
    shard: int
    attempt: int
    worker: str
    failure: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AggregatedLine:
    """Updates became the next model version.

    `round` numbers aggregations, which in step are rounds. `train_seconds` run from the round's
    first assignment to its last update, or from the version before; `loss` is the sample-weighted
    mean of the updates' losses. Where shards are not in step, `parts` are the tasks that it is made
    of, by round and shard, and `staleness` how many versions old those were that they began from.
    `checksum` is the version's; empty in old records.
    """

    round: int
    version: int
    file: str
    bytes: int
    seconds: float
    train_seconds: float
    loss: Measured
    parts: tuple[tuple[int, int], ...] = ()
    staleness: tuple[int, ...] = ()
    checksum: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluatedLine:
    """How good the model is after a round: its loss, and the task's metrics by name, in its order.

    `class_accuracy` has one entry a class, NaN for a class without examples. `part` says on which
    examples: the spec's `validation` sets training examples apart for that.
    """

    round: int
    loss: Measured
    metrics: dict[str, Measured]
    class_accuracy: tuple[Measured, ...]
    seconds: float
    part: Part = "test"


@dataclass(frozen=True, slots=True, kw_only=True)
class ImprovedLine:
    """The model after a round, in `file`, is the best so far.

    `value` is what the spec's `keep_best` names, or the loss.
    """

    round: int
    value: float
    file: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedLine:
    """The experiment is done; `file` is the name of the final model.

    `reason` says why there were no more rounds; `checksum` is that file's. Both are empty in old
    records.
    """

    file: str
    total_seconds: float
    reason: str = ""
    checksum: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedLine:
    """The experiment ended without a model; `asked_wrongly` if the user must correct the spec."""

    reason: str
    asked_wrongly: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class CancelledLine:
    """The experiment was cancelled."""

    reason: str


RecordLine = (
    SubmittedLine
    | WorkerJoinedLine
    | WorkerLeftLine
    | PreparedLine
    | AssignedLine
    | ForeseenLine
    | SavedLine
    | ContradictedLine
    | HandOverAskedLine
    | DroppedLine
    | ResizedLine
    | WorkerRequestedLine
    | UpdatedLine
    | ResourcesUsedLine
    | AttemptFailedLine
    | AggregatedLine
    | EvaluatedLine
    | ImprovedLine
    | FinishedLine
    | FailedLine
    | CancelledLine
)

# Words on the disk: readers skip a kind that they do not know, so one that is renamed is lost to
# reports of older records.
KINDS: dict[str, type[RecordLine]] = {
    "submitted": SubmittedLine,
    "worker-joined": WorkerJoinedLine,
    "worker-left": WorkerLeftLine,
    "prepared": PreparedLine,
    "assigned": AssignedLine,
    "foreseen": ForeseenLine,
    "saved": SavedLine,
    "contradicted": ContradictedLine,
    "hand-over-asked": HandOverAskedLine,
    "dropped": DroppedLine,
    "resized": ResizedLine,
    "worker-requested": WorkerRequestedLine,
    "updated": UpdatedLine,
    "resources-used": ResourcesUsedLine,
    "attempt-failed": AttemptFailedLine,
    "aggregated": AggregatedLine,
    "measured": EvaluatedLine,
    "improved": ImprovedLine,
    "finished": FinishedLine,
    "failed": FailedLine,
    "cancelled": CancelledLine,
}
_KIND_OF = {fact: kind for kind, fact in KINDS.items()}


def to_fields(fact: RecordLine) -> dict[str, Any]:
    """Turn a fact into its kind and plain fields that JSON can hold."""
    # Not by `asdict`, which copies every value and takes half of the time of a projection.
    named = {field.name: getattr(fact, field.name) for field in dataclasses.fields(fact)}
    return {"kind": _KIND_OF[type(fact)], **_plain(named)}


def from_fields(fields: dict[str, Any]) -> RecordLine | None:
    """Turn plain fields back into a fact; None for a kind that this version does not know.

    Raises:
        ValueError: a field is missing or of another type.
    """
    fields = _of_this_version(fields)
    kind = fields["kind"]
    return _reader(kind).validate_python(fields) if kind in KINDS else None


def _of_this_version(fields: dict[str, Any]) -> dict[str, Any]:
    # Another word than before, because earlier readers skip what they do not know, and would take a
    # line of a known kind without an accuracy for a damaged one.
    if fields["kind"] != "evaluated":
        return fields
    return {**fields, "kind": "measured", "metrics": {"accuracy": fields["accuracy"]}}


@cache
def _reader(kind: str) -> TypeAdapter[RecordLine]:
    # Kept, because pydantic compiles a validator for each adapter, and a record may have thousands
    # of lines of a kind.
    return TypeAdapter(KINDS[kind])


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
