"""Decisions and counts of the scheduler: a closed list of small frozen values.

A fact asks for nothing; commands do (`commands.py`). All facts are journaled, and go on record
(`files/records/view.py`). Replay also takes in the result-changing ones, so that another scheduler
gets to the same state (`replay.py`). The facts of an event are in the order in which they came
about. `cause` is the number of the event that led to a fact, counted from 1.
"""

from __future__ import annotations

from dataclasses import dataclass

from downpour.base.states import Ending, FailureKind
from downpour.base.values import AttemptId, Forecast, PublishedFile, Snapshot, Update


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptFact:
    """The part that all facts about an attempt have: the attempt and its worker."""

    cause: int
    worker: str
    attempt: AttemptId

    @property
    def experiment(self) -> str:
        """The experiment that the attempt belongs to."""
        return self.attempt.experiment


@dataclass(frozen=True, slots=True, kw_only=True)
class Assigned(AttemptFact):
    """A worker is to train a shard, from its snapshot on if there is one.

    `portion` is the range of its samples (first, last + 1), if the round was recut; `share` how
    much of the task's steps it trains. If rounds overlap, it begins from the model moved by
    `step`, the shard's last update. `forecast` is of the seconds until its update; None if nothing
    is known.
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
    """A worker is to hand its attempt over to another one at its next step."""

    meant_for: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ForecastRecorded(AttemptFact):
    """The forecast of a running attempt, for the record.

    `done` is the share of the shard by its last report, which came `elapsed_seconds` after the
    assignment; `remaining` are the seconds from then until its update.
    """

    done: float
    elapsed_seconds: float
    remaining: Forecast


@dataclass(frozen=True, slots=True, kw_only=True)
class Accepted(AttemptFact):
    """An update counts; `completion_seconds` run from the assignment to the report.

    Of these, the worker's process took `startup_seconds` for its one-time work in an experiment: to
    import, to make the network, and to open the dataset.
    """

    update: Update
    completion_seconds: float
    startup_seconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Saved(AttemptFact):
    """The next attempt at a shard goes on from this snapshot."""

    snapshot: Snapshot


@dataclass(frozen=True, slots=True, kw_only=True)
class Contradicted(AttemptFact):
    """Two updates of one contribution differ; the first one counts.

    They should be the same bytes, so these workers do not compute alike.
    """

    update: Update
    accepted: Update
    accepted_from: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenUp(AttemptFact):
    """An attempt has failed, or was taken back."""

    failure: FailureKind
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Dropped:
    """A round is over without these shards."""

    cause: int
    experiment: str
    round: int
    shards: tuple[int, ...]
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Resized:
    """A round is cut into shards of these sizes, in samples."""

    cause: int
    experiment: str
    round: int
    samples: tuple[int, ...]
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Improved:
    """The model after a round is the best so far, with this value of the measure.

    It follows from the evaluation, so it is not replayed.
    """

    cause: int
    experiment: str
    round: int
    value: float
    model: PublishedFile


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerRequested:
    """A policy asks for one more worker; a launcher may be there that can start one."""

    cause: int
    experiment: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Explained:
    """A policy has said why it does nothing, about a worker.

    The worker gets no shard, or its `shard` stays there although it is late.
    """

    cause: int
    experiment: str
    round: int
    worker: str
    reason: str
    shard: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Dismissed:
    """A worker has left, or counts as `lost`."""

    cause: int
    worker: str
    reason: str
    lost: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Concluded:
    """An experiment has ended; `model` is its published result where it finished."""

    cause: int
    experiment: str
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
