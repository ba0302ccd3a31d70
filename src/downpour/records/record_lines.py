"""What can happen in an experiment: the closed list of facts that its record is made of.

Writer and reader agree by these types, so a report never guesses at keys. Rounds and shards count
from 0 here; reports show rounds to people as epochs from 1. Seconds are the manager's clock unless
a field says otherwise. A fact is never changed once written; a kind may gain fields with defaults,
and a reader skips kinds and fields it does not know.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, NamedTuple

from pydantic import BeforeValidator, TypeAdapter

Measured = Annotated[float, BeforeValidator(lambda value: math.nan if value is None else value)]
"""A number that may be NaN or infinite; JSON has neither, so null stands for both."""


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
    """A worker is gone: it was `lost`, or went of its own accord; old records do not say which."""

    worker: str
    reason: str
    lost: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedLine:
    """Dataset, split and initial model are ready; `bytes` is the model file's size.

    `numeric_class` is the manager's, which has drawn the initial model; empty in old records.
    `dataset` is the key of what was prepared, `understood` what it was taken for, in words, and
    `remarks` what is strange about it.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class AssignedLine:
    """A worker was given a task, and why that worker; `from_step` is where a snapshot ends.

    The quantiles are what was predicted of the seconds from here to its update: of ten times, one
    is shorter than `q10_seconds`, five are shorter than `q50_seconds` and nine than `q90_seconds`.
    None where nothing was known.
    """

    round: int
    shard: int
    attempt: int
    worker: str
    reason: str
    from_step: int = 0
    q10_seconds: float | None = None
    q50_seconds: float | None = None
    q90_seconds: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ForeseenLine:
    """What was predicted of an attempt under way.

    Recorded after each quarter of its work, and whenever somebody else is to do it: so few keep the
    record small. `done` is the share of the shard, in 0..1, that was trained `elapsed_seconds`
    after the assignment. The quantiles are those of all seconds from the assignment to the update,
    as with `AssignedLine`.
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
    """An attempt published its state after so many steps; who is assigned next goes on there."""

    round: int
    shard: int
    attempt: int
    worker: str
    step: int
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class HandOverAskedLine:
    """A worker was asked to hand an attempt over to another one, and why."""

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
    """One more worker was asked for, and why; nobody may be there who can start one."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ContradictedLine:
    """Two attempts at one shard gave different bytes; what was accepted first counts.

    These workers do not compute alike, so this experiment cannot be repeated to the byte.
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
    assignment to the report.
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


class Sample(NamedTuple):
    """What a process used at a moment of the manager's clock; a short row in JSON.

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
    """What an attempt's process used while it trained, as its worker's heartbeats said.

    Of a long attempt every second sample is kept, or fewer, so that the whole of it is shown.
    """

    round: int
    shard: int
    attempt: int
    worker: str
    samples: tuple[Sample, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptFailedLine:
    """An attempt came to nothing; `failure` is its kind in a word."""

    round: int
    shard: int
    attempt: int
    worker: str
    failure: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AggregatedLine:
    """A round's updates became the next model version.

    `train_seconds` run from the round's first assignment to its last update; `loss` is the
    sample-weighted mean of the updates' losses.
    """

    round: int
    version: int
    file: str
    bytes: int
    seconds: float
    train_seconds: float
    loss: Measured


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluatedLine:
    """How good the model is after a round; a class without test examples has NaN."""

    round: int
    accuracy: Measured
    loss: Measured
    class_accuracy: tuple[Measured, ...]
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedLine:
    """The experiment is done; `file` is the name of the final model."""

    file: str
    total_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedLine:
    """The experiment ended without a model; `asked_wrongly` if the user can mend the spec."""

    reason: str
    asked_wrongly: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class CancelledLine:
    """Somebody called the experiment off."""

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
    | FinishedLine
    | FailedLine
    | CancelledLine
)

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
    "evaluated": EvaluatedLine,
    "finished": FinishedLine,
    "failed": FailedLine,
    "cancelled": CancelledLine,
}
_KIND_OF = {fact: kind for kind, fact in KINDS.items()}


def to_fields(fact: RecordLine) -> dict[str, Any]:
    """Turn a fact into its kind and plain fields that JSON can hold."""
    return {"kind": _KIND_OF[type(fact)], **_plain(dataclasses.asdict(fact))}


def from_fields(fields: dict[str, Any]) -> RecordLine | None:
    """Turn plain fields back into a fact; None for a kind that this version does not know.

    Raises:
        ValueError: where a field is missing or of another type.
    """
    kind = fields["kind"]
    return _reader(kind).validate_python(fields) if kind in KINDS else None


@cache
def _reader(kind: str) -> TypeAdapter[RecordLine]:
    return TypeAdapter(KINDS[kind])


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
