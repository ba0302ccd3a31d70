"""The decisions of the scheduler: facts and commands, two closed lists of small frozen values.

A fact asks for nothing. The manager writes all facts to the journal, and the record shows them
(`record/view.py`). Replay takes in the facts that change results, so that another scheduler reaches
the same state (`replay.py`). The facts of an event are in the order in which they happened.

A command asks the driver for something. The driver's duties, in order:

1. Log the facts of an event, and make result-changing ones durable.
2. Carry out the commands in the order given; long ones may run at the same time.
3. Make a file durable and checksum it before any message names it.
4. Report each effect back as an event. `Prepare` comes back as `Prepared`, `Aggregate` as
    `Aggregated` or `AggregationFailed`, `Evaluate` as `Evaluated`, `Publish` as `ModelPublished`,
    and each update that `Adopt` finds as `UpdatePublished`. Failures come back as `EffectFailed`,
    `WorkerLost` or `AttemptFailed`. The core waits for these and asks only once. The driver may
    ignore `Gather`.
"""

from dataclasses import dataclass, field
from typing import Literal

from downpour.base import values
from downpour.base.states import Ending, FailureKind
from downpour.core.spec import ResolvedSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class _Fact:
    """`cause` is the number of the event that led to it, from 1; `SchedulerState.note` sets it."""

    cause: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptFact(_Fact):
    """The part that all facts about an attempt share: the attempt and its worker."""

    worker: str
    attempt: values.AttemptId

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

    model: values.PublishedFile
    optimizer_state: values.PublishedFile | None
    reason: str
    snapshot: values.Snapshot | None = None
    portion: tuple[int, int] | None = None
    share: float = 1.0
    step: values.PublishedFile | None = None
    forecast: values.Forecast | None = None


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
    remaining: values.Forecast


@dataclass(frozen=True, slots=True, kw_only=True)
class Accepted(AttemptFact):
    """An update counts; `completion_seconds` run from the assignment to the report.

    `startup_seconds` of these went into work that the worker's process does once per experiment: it
    imports, makes the network, and opens the dataset. If an audit compared the update with equal
    ones, `confirmed_by` names the workers of these.
    """

    update: values.Update
    completion_seconds: float
    startup_seconds: float = 0.0
    confirmed_by: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Withheld(AttemptFact):
    """An audited update does not count before another worker has trained its task as well.

    The worker trained it in its `numeric_class`. It is `whole` if the worker did all the steps, and
    continued from no snapshot of another one.
    """

    update: values.Update
    numeric_class: str
    whole: bool
    completion_seconds: float
    startup_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Quarantined(AttemptFact):
    """A worker computes wrong, for this reason, and its `process` gets no more tasks.

    The `process` is None if another one has joined in its place, and empty if it is unknown. The
    attempt is the one that showed it. The worker trained `unaudited` tasks since its last good
    audit, and their updates count. The first of them was in the round `unaudited_since`.
    """

    reason: str
    unaudited: int = 0
    unaudited_since: int | None = None
    process: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Saved(AttemptFact):
    """The next attempt at a shard continues from this snapshot."""

    snapshot: values.Snapshot


@dataclass(frozen=True, slots=True, kw_only=True)
class Contradicted(AttemptFact):
    """Two updates of one contribution differ; the first one counts.

    They should have the same bytes, so these workers compute different results.
    """

    update: values.Update
    accepted: values.Update
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
    model: values.PublishedFile | None


Change = Literal["paused", "continued", "prioritized", "set aside", "begun beside"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rescheduled(ExperimentFact):
    """A user rescheduled an experiment, or no worker trains a paused one any more."""

    change: Change
    priority: int = 0


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
    """An experiment has ended; `model` is its published result if it finished.

    An experiment that continues it begins with the version `back_to`, if one is named.
    """

    ending: Ending
    reason: str
    asked_wrongly: bool = False
    model: values.PublishedFile | None = None
    back_to: values.PublishedFile | None = None


Fact = (
    Assigned
    | HandOverAsked
    | ForecastRecorded
    | Accepted
    | Withheld
    | Quarantined
    | Saved
    | Contradicted
    | GivenUp
    | Dropped
    | Resized
    | Improved
    | Rescheduled
    | WorkerRequested
    | Explained
    | Dismissed
    | Concluded
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepare:
    """Prepare the dataset, the shards and the first model version of an experiment.

    When an experiment continues after a restart, `dataset` is the dataset that it began with, and
    `model` its newest version. The examples must be the same, and the driver makes no first model.
    `outer` is the state of its outer optimizer, and `frozen` is the file of the parameters that no
    task trains. `trial` has the checksums of the steps that each process repeats.
    """

    experiment: str
    spec: ResolvedSpec
    dataset: str | None = None
    model: values.PublishedFile | None = None
    outer: values.PublishedFile | None = None
    frozen: values.PublishedFile | None = None
    trial: values.TrialSums | None = None


@dataclass(frozen=True, slots=True)
class Assign:
    """Ask a worker for an attempt, or ask again if the worker has registered without it.

    `leading` are the versions whose steps lead to the attempt's version (`queue.py`). If the task's
    last attempt left its files `unread`, one of them may be gone. Then the worker needs the version
    in one file, and another file of indices.
    """

    assigned: Assigned
    leading: tuple[values.PublishedFile, ...] = ()
    unread: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Cancel:
    """Ask a worker to stop an attempt that is no longer wanted."""

    worker: str
    attempt: values.AttemptId
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class HandOver:
    """Ask a worker to publish an attempt's state at its next step and stop; best effort.

    The answer is `HandedOver`. None comes if the worker is lost, or ends the attempt first.
    """

    worker: str
    attempt: values.AttemptId


@dataclass(frozen=True, slots=True, kw_only=True)
class Adopt:
    """Look for updates that these attempts published but did not report.

    Each update comes back as `UpdatePublished`, from the worker named here.
    """

    experiment: str
    attempts: tuple[tuple[values.AttemptId, str], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Push:
    """An update that the driver makes part of a model version.

    It is the step that a shard's task made in a round, beginning from the version `base`.
    `staleness` counts the versions made since then. The driver multiplies the step by its `weight`
    and by the aggregation's weight.
    """

    round: int
    shard: int
    update: values.Update
    base: values.PublishedFile
    staleness: int = 0
    weight: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Aggregate:
    """Aggregate updates, in the order of their rounds and shards, into the next model version.

    `round` numbers the aggregations, which are the rounds if shards are in step. `model` is the
    newest version. `outer` is the last published state of the outer optimizer, if the spec has one,
    and `since_outer` are the updates of each version made after it, oldest first. If shards are not
    `in_step`, the version moves by the updates' steps or, if it `mixes`, toward their parameters.
    If it is `elastic`, these parameters also move toward the version, and the driver publishes them
    for each shard. `train_seconds` is the wall time from the first assignment of the oldest round
    to its last update. The driver publishes the new version `whole`, or as a difference from
    `model`. If it `keeps_mean`, it also publishes the mean of the updates likewise. `versions` are
    the kept versions, oldest first, if some are differences.
    """

    experiment: str
    round: int
    model: values.PublishedFile
    whole: bool = True
    versions: tuple[values.PublishedFile, ...] = ()
    outer: values.PublishedFile | None = None
    since_outer: tuple[tuple[Push, ...], ...] = ()
    keeps_mean: bool = False
    pushes: tuple[Push, ...]
    in_step: bool = True
    mixes: bool = False
    elastic: bool = False
    train_seconds: float

    @property
    def parts(self) -> tuple[tuple[int, int], ...]:
        """The updates that the answer names; none in step, where all that have arrived count."""
        return () if self.in_step else tuple((push.round, push.shard) for push in self.pushes)

    @property
    def shards(self) -> tuple[int, ...]:
        """The updates' shards."""
        return tuple(push.shard for push in self.pushes)

    @property
    def updates(self) -> tuple[values.Update, ...]:
        """The updates themselves."""
        return tuple(push.update for push in self.pushes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Gather:
    """Begin to sum an update of a round in step, while the round waits for others.

    This is a hint without an answer. `Aggregate` names all updates that count, and gives the same
    bytes without the hint. `model` is the version that the round moves, and `base` the one that its
    tasks began from. If rounds overlap, `base` is an earlier version.
    """

    experiment: str
    round: int
    shard: int
    update: values.Update
    model: values.PublishedFile
    base: values.PublishedFile


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluate:
    """Measure the model of a round on a part of the examples: a version, or the mean before it.

    `leading` are the versions whose steps lead to it.
    """

    experiment: str
    round: int
    model: values.PublishedFile
    part: values.Part = "test"
    leading: tuple[values.PublishedFile, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Publish:
    """Publish an experiment's last model as its result, and the best one if we keep it.

    `leading` are the versions whose steps lead to the last one.
    """

    experiment: str
    model: values.PublishedFile
    best: values.PublishedFile | None = None
    leading: tuple[values.PublishedFile, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Dismiss:
    """Forget a worker that has left or is lost."""

    worker: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Discard:
    """Remove files that are no longer needed; some may be gone already."""

    experiment: str
    files: tuple[values.PublishedFile, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Conclude:
    """Remove the files that an ended experiment needed only to continue.

    The `kept` files stay, because the shards of an experiment that continues this one begin with
    them. The `versions` stay as well; they include the last published state of the outer optimizer.
    The driver also publishes the newest state, from the updates of each version `since_outer`.
    """

    experiment: str
    ending: Ending
    kept: tuple[values.PublishedFile, ...] = ()
    versions: tuple[values.PublishedFile, ...] = ()
    since_outer: tuple[tuple[Push, ...], ...] = ()


Command = (
    Prepare
    | Assign
    | Cancel
    | HandOver
    | Adopt
    | Gather
    | Aggregate
    | Evaluate
    | Publish
    | Dismiss
    | Discard
    | Conclude
)


@dataclass(frozen=True, slots=True)
class Output:
    """The result of an event: facts and commands, both in order."""

    commands: list[Command] = field(default_factory=list)
    facts: list[Fact] = field(default_factory=list)
