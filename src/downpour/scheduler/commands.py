"""Everything the scheduler can ask of its driver: a closed list of small frozen values.

The driver's duties, in order:

1. Put on record what the commands of one event say (`Accept`, `GiveUp`, `Assign`, ...).
2. Carry the commands out in the order given; long ones may run beside each other.
3. A file is durable and checksummed before any message names it.
4. Report each effect back as an event: `Prepare` as `Prepared`, `Aggregate` as `Aggregated` or
   `UpdatesRefused`, `Evaluate` as `Evaluated`, `Publish` as `ModelPublished`, and what `Adopt`
   finds as `UpdatePublished`; what could not be done comes back as `EffectFailed`, `WorkerLost` or
   `AttemptFailed`. The core waits for these and asks only once.

`cause` is the number of the event that led to the command, counted from 1.
"""

from __future__ import annotations

from dataclasses import dataclass

from downpour.spec import ResolvedSpec
from downpour.values import (
    AttemptId,
    Ending,
    FailureKind,
    Forecast,
    PublishedFile,
    Snapshot,
    Update,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepare:
    """Make the dataset, the shards and the first model version of an experiment.

    Where the experiment goes on after a restart, `dataset` is the one that it began with, and
    `model` the newest version: the examples must be the same, and no first model is made.
    """

    cause: int
    experiment: str
    spec: ResolvedSpec
    dataset: str | None = None
    model: PublishedFile | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Assign:
    """Ask a worker to train a shard; where there is a snapshot of it, from there on.

    `portion` are the first and the last sample, exclusively, where the round was cut anew.
    `forecast` are the seconds until its update, where they can be foreseen.
    """

    cause: int
    worker: str
    attempt: AttemptId
    model: PublishedFile
    optimizer_state: PublishedFile | None
    reason: str
    snapshot: Snapshot | None = None
    portion: tuple[int, int] | None = None
    forecast: Forecast | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Repeat:
    """Ask a worker once more for what it was asked by an earlier manager, and came back without."""

    cause: int
    assignment: Assign


@dataclass(frozen=True, slots=True, kw_only=True)
class Foresee:
    """Put on record what is predicted of a running attempt.

    `done` is the share of the shard by its last report, which came `elapsed_seconds` after the
    assignment; `remaining` are the seconds from then until its update.
    """

    cause: int
    worker: str
    attempt: AttemptId
    done: float
    elapsed_seconds: float
    remaining: Forecast


@dataclass(frozen=True, slots=True, kw_only=True)
class Cancel:
    """Ask a worker to stop an attempt that is no longer wanted."""

    cause: int
    worker: str
    attempt: AttemptId
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class HandOver:
    """Ask a worker to publish an attempt's state at its next step and stop; best effort.

    Comes back as `HandedOver`, or not at all.
    """

    cause: int
    worker: str
    attempt: AttemptId
    meant_for: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Drop:
    """Put on record that a round is over without these shards."""

    cause: int
    experiment: str
    round: int
    shards: tuple[int, ...]
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Resize:
    """Put on record that a round is cut into shards of these sizes, in samples."""

    cause: int
    experiment: str
    round: int
    samples: tuple[int, ...]
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestWorker:
    """Ask the launcher for one more worker; there may be none that can start any."""

    cause: int
    experiment: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Accept:
    """Put on record that this update counts; `completion_seconds` run from assignment to report."""

    cause: int
    worker: str
    attempt: AttemptId
    update: Update
    completion_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Save:
    """Put on record that the next attempt at this shard goes on from this snapshot."""

    cause: int
    worker: str
    attempt: AttemptId
    snapshot: Snapshot


@dataclass(frozen=True, slots=True, kw_only=True)
class Contradict:
    """Put on record that two updates of one contribution differ; the first one counts.

    They should be the same bytes, so these workers do not compute alike.
    """

    cause: int
    worker: str
    attempt: AttemptId
    update: Update
    accepted: Update
    accepted_from: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GiveUp:
    """Put on record that an attempt has failed, or was taken back."""

    cause: int
    worker: str
    attempt: AttemptId
    failure: FailureKind
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Adopt:
    """Look which of these attempts have published an update that was not reported.

    Each one found comes back as `UpdatePublished`, from the worker named here.
    """

    cause: int
    experiment: str
    attempts: tuple[tuple[AttemptId, str], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Aggregate:
    """Make the next model version of a round's updates, given in the order of their `shards`.

    `model` is the version that they were trained from; `train_seconds` is the wall time from the
    round's first assignment to its last update.
    """

    cause: int
    experiment: str
    round: int
    model: PublishedFile
    shards: tuple[int, ...]
    updates: tuple[Update, ...]
    train_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluate:
    """Measure the model version of a round on the test examples."""

    cause: int
    experiment: str
    round: int
    model: PublishedFile


@dataclass(frozen=True, slots=True, kw_only=True)
class Publish:
    """Publish an experiment's last model version as its result."""

    cause: int
    experiment: str
    model: PublishedFile


@dataclass(frozen=True, slots=True, kw_only=True)
class Dismiss:
    """Forget a worker: it has left, or counts as `lost`."""

    cause: int
    worker: str
    reason: str
    lost: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Discard:
    """Remove files that are not needed any more; some may be gone already."""

    cause: int
    experiment: str
    files: tuple[PublishedFile, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Conclude:
    """Close an experiment; `model` is its published result where it finished."""

    cause: int
    experiment: str
    ending: Ending
    reason: str
    asked_wrongly: bool = False
    model: PublishedFile | None = None


Command = (
    Prepare
    | Assign
    | Repeat
    | Foresee
    | Cancel
    | HandOver
    | Drop
    | Resize
    | RequestWorker
    | Accept
    | Save
    | Contradict
    | GiveUp
    | Adopt
    | Aggregate
    | Evaluate
    | Publish
    | Dismiss
    | Discard
    | Conclude
)
