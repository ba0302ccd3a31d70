"""Everything that can happen to the scheduler: a closed list of small frozen values.

Each event carries its own time, `at_seconds`, on the experiment clock; the core has no other. A
driver that learns something makes one of these and hands it to `Scheduler.handle`.
"""

from __future__ import annotations

from dataclasses import dataclass

from downpour.spec import ResolvedSpec
from downpour.values import (
    AttemptId,
    Evaluation,
    FailureKind,
    Forecast,
    ProcessState,
    Progress,
    PublishedFile,
    Snapshot,
    SystemState,
    Update,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExperimentSubmitted:
    """A client wants this spec run."""

    at_seconds: float
    experiment: str
    spec: ResolvedSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class ExperimentCancelled:
    """A client wants an experiment stopped."""

    at_seconds: float
    experiment: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """The dataset is there, cut into shards, and the first model version is published.

    `dataset` names what was prepared, by its content: equal names are equal examples.
    """

    at_seconds: float
    experiment: str
    dataset: str
    shard_samples: tuple[int, ...]
    model: PublishedFile


@dataclass(frozen=True, slots=True, kw_only=True)
class EffectFailed:
    """Something the core had commanded for an experiment could not be done."""

    at_seconds: float
    experiment: str
    reason: str
    asked_wrongly: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerJoined:
    """A worker has registered; under a known name it replaces its former self.

    `running` is what it is training already, where the manager or the network went away meanwhile.
    """

    at_seconds: float
    worker: str
    running: AttemptId | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerLeft:
    """A worker has said goodbye."""

    at_seconds: float
    worker: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerLost:
    """A worker could not be reached when it was called."""

    at_seconds: float
    worker: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class HeartbeatReceived:
    """A worker lives; says what it is running and how its machine is.

    What its process uses is for the record; nothing is decided from it.
    """

    at_seconds: float
    worker: str
    running: tuple[Progress, ...]
    system: SystemState
    process: ProcessState | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdatePublished:
    """An attempt has succeeded; its update is durable in the shared directory."""

    at_seconds: float
    worker: str
    attempt: AttemptId
    update: Update


@dataclass(frozen=True, slots=True, kw_only=True)
class HandedOver:
    """A worker has published the state of an attempt, as it was asked to, and has stopped."""

    at_seconds: float
    worker: str
    attempt: AttemptId
    snapshot: Snapshot


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecasts:
    """What is predicted from what was last heard of workers.

    `paces` are seconds a sample of a worker that would begin a shard now; `remaining` are seconds
    until a worker's update, from its last report on.
    """

    at_seconds: float
    paces: tuple[tuple[str, Forecast], ...] = ()
    remaining: tuple[tuple[AttemptId, Forecast], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptFailed:
    """An attempt has failed."""

    at_seconds: float
    worker: str
    attempt: AttemptId
    failure: FailureKind
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Aggregated:
    """A round's updates are one model version now."""

    at_seconds: float
    experiment: str
    round: int
    model: PublishedFile


@dataclass(frozen=True, slots=True, kw_only=True)
class AggregationFailed:
    """Some of a round's updates cannot be used: missing, altered, non-finite, ill-shaped.

    `reasons` has at least one entry: a shard, and what is wrong with its update.
    """

    at_seconds: float
    experiment: str
    round: int
    reasons: tuple[tuple[int, str], ...]

    def __post_init__(self) -> None:
        if not self.reasons:
            raise ValueError("who refuses updates names at least one shard")


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluated:
    """It is known how good the model version of a round is."""

    at_seconds: float
    experiment: str
    round: int
    evaluation: Evaluation


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelPublished:
    """The experiment's result lies under its own name."""

    at_seconds: float
    experiment: str
    model: PublishedFile


@dataclass(frozen=True, slots=True, kw_only=True)
class Tick:
    """Time has passed."""

    at_seconds: float


Event = (
    ExperimentSubmitted
    | ExperimentCancelled
    | Prepared
    | EffectFailed
    | WorkerJoined
    | WorkerLeft
    | WorkerLost
    | HeartbeatReceived
    | UpdatePublished
    | HandedOver
    | Forecasts
    | AttemptFailed
    | Aggregated
    | AggregationFailed
    | Evaluated
    | ModelPublished
    | Tick
)
