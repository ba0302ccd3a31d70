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
from typing import Annotated, Any

from pydantic import BeforeValidator, TypeAdapter

Measured = Annotated[float, BeforeValidator(lambda value: math.nan if value is None else value)]
"""A number that may be NaN or infinite; JSON has neither, so null stands for both."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Submitted:
    """The manager accepted an experiment; `spec` holds the fields of the resolved spec."""

    experiment: str
    name: str
    spec: dict[str, Any]
    version: str
    shards: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerJoined:
    """A worker may be given tasks from now on."""

    worker: str
    address: str
    numeric_class: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerLeft:
    """A worker is gone, of its own accord or lost."""

    worker: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """Dataset, split and initial model are ready; `bytes` is the model file's size."""

    train_samples: int
    test_samples: int
    classes: int
    shard_samples: tuple[int, ...]
    prepare_seconds: float
    split_seconds: float
    bytes: int
    parameters: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Assigned:
    """A worker was given a task, and why that worker."""

    round: int
    shard: int
    attempt: int
    worker: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Updated:
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


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptFailed:
    """An attempt came to nothing; `failure` is its kind in a word."""

    round: int
    shard: int
    attempt: int
    worker: str
    failure: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Aggregated:
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
class Evaluated:
    """How good the model is after a round; a class without test examples has NaN."""

    round: int
    accuracy: Measured
    loss: Measured
    class_accuracy: tuple[Measured, ...]
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """The experiment is done; `file` is the name of the final model."""

    file: str
    total_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    """The experiment ended without a model; `asked_wrongly` if the user can mend the spec."""

    reason: str
    asked_wrongly: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Cancelled:
    """Somebody called the experiment off."""

    reason: str


Fact = (
    Submitted
    | WorkerJoined
    | WorkerLeft
    | Prepared
    | Assigned
    | Updated
    | AttemptFailed
    | Aggregated
    | Evaluated
    | Finished
    | Failed
    | Cancelled
)

KINDS: dict[str, type[Fact]] = {
    "submitted": Submitted,
    "worker-joined": WorkerJoined,
    "worker-left": WorkerLeft,
    "prepared": Prepared,
    "assigned": Assigned,
    "updated": Updated,
    "attempt-failed": AttemptFailed,
    "aggregated": Aggregated,
    "evaluated": Evaluated,
    "finished": Finished,
    "failed": Failed,
    "cancelled": Cancelled,
}
_KIND_OF = {fact: kind for kind, fact in KINDS.items()}


def to_fields(fact: Fact) -> dict[str, Any]:
    """Turn a fact into its kind and plain fields that JSON can hold."""
    return {"kind": _KIND_OF[type(fact)], **_plain(dataclasses.asdict(fact))}


def from_fields(fields: dict[str, Any]) -> Fact | None:
    """Turn plain fields back into a fact; None for a kind that this version does not know.

    Raises:
        ValueError: where a field is missing or of another type.
    """
    kind = fields["kind"]
    return _reader(kind).validate_python(fields) if kind in KINDS else None


@cache
def _reader(kind: str) -> TypeAdapter[Fact]:
    return TypeAdapter(KINDS[kind])


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
