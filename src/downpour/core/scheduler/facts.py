"""Decisions and counts of the scheduler: a closed list of small frozen values.

A fact asks for nothing; commands do (`commands.py`). The manager writes all facts to the journal,
and the record shows them (`record/view.py`). Replay takes in the facts that change results,
so that another scheduler reaches the same state (`replay.py`). The facts of an event are in the
order in which they happened.
"""

from __future__ import annotations

from dataclasses import dataclass

from downpour.base.states import Ending, FailureKind
from downpour.base.values import AttemptId, Forecast, PublishedFile, Snapshot, Update


@dataclass(frozen=True, slots=True, kw_only=True)
class _Fact:
    """`cause` is the number of the event that led to it, from 1; `SchedulerState.note` sets it."""

    cause: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptFact(_Fact):
    """The part that all facts about an attempt share: the attempt and its worker."""

    worker: str
    attempt: AttemptId

    @property
    def experiment(self) -> str:
        """The experiment that the attempt belongs to."""
        return self.attempt.experiment


@dataclass(frozen=True, slots=True, kw_only=True)
class Assigned(AttemptFact):
    """A worker should train a shard, continuing from its snapshot if there is one.

    `portion` is the range of the shard's samples (first, last + 1), if a policy recut the round.
    `share` says how much of the task's steps the worker trains. If rounds overlap, it begins from
    the model moved by `step`, the shard's last update. `forecast` predicts the seconds until the
    update; None if nothing is known.
    """

    model: PublishedFile
    optimizer_state: PublishedFile | None
    reason: str
    snapshot: Snapshot | None = None
    portion: tuple[int, int] | None = None
    share: float = 1.0
    step: PublishedFile | None = None
    forecast: Forecast | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class HandOverAsked(AttemptFact):
    """A worker should hand over its attempt to another worker at its next step."""

    meant_for: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ForecastRecorded(AttemptFact):
    """The forecast of a running attempt, for the record.

    `done` is the trained share of the shard at the last step, which came `elapsed_seconds` after
    the assignment. `remaining` predicts the seconds from then until the update.
    """

    done: float
    elapsed_seconds: float
    remaining: Forecast


@dataclass(frozen=True, slots=True, kw_only=True)
class Accepted(AttemptFact):
    """An update counts; `completion_seconds` run from the assignment to the report.

    `startup_seconds` of these went into work that the worker's process does once per experiment: it
    imports, makes the network, and opens the dataset.
    """

    update: Update
    completion_seconds: float
    startup_seconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Saved(AttemptFact):
    """The next attempt at a shard continues from this snapshot."""

    snapshot: Snapshot


@dataclass(frozen=True, slots=True, kw_only=True)
class Contradicted(AttemptFact):
    """Two updates of one contribution differ; the first one counts.

    They should have the same bytes, so these workers compute different results.
    """

    update: Update
    accepted: Update
    accepted_from: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenUp(AttemptFact):
    """An attempt has failed, or the scheduler took it back."""

    failure: FailureKind
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ExperimentFact(_Fact):
    """The part that all other facts about an experiment share."""

    experiment: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Dropped(ExperimentFact):
    """A round is over without these shards."""

    round: int
    shards: tuple[int, ...]
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Resized(ExperimentFact):
    """The scheduler cuts a round into shards of these sizes, in samples."""

    round: int
    samples: tuple[int, ...]
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Improved(ExperimentFact):
    """The model after a round is the best so far; `value` is its measure.

    The first one may be of an earlier experiment that this one continues, see `Best`. Replay skips
    this fact, because it follows from the evaluation or the preparation.
    """

    round: int
    value: float
    model: PublishedFile | None


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerRequested(ExperimentFact):
    """A policy asks for one more worker; a launcher may be able to start one."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Explained(ExperimentFact):
    """A policy has said why it does nothing about a worker.

    The worker gets no shard, or its `shard` stays with it although the shard is late.
    """

    round: int
    worker: str
    reason: str
    shard: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Dismissed(_Fact):
    """A worker has left, or counts as `lost`."""

    worker: str
    reason: str
    lost: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Concluded(ExperimentFact):
    """An experiment has ended; `model` is its published result if it finished."""

    ending: Ending
    reason: str
    asked_wrongly: bool = False
    model: PublishedFile | None = None


Fact = (
    Assigned
    | HandOverAsked
    | ForecastRecorded
    | Accepted
    | Saved
    | Contradicted
    | GivenUp
    | Dropped
    | Resized
    | Improved
    | WorkerRequested
    | Explained
    | Dismissed
    | Concluded
)
