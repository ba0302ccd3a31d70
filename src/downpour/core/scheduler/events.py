"""Everything that can happen to the scheduler: a closed list of small frozen values.

Each event carries its own time, `at_seconds`, on the experiment clock; the core has no other clock.
A driver turns its news into events and passes them to `Scheduler.handle`.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from downpour.base import values
from downpour.base.states import Evaluation, FailureKind, Goal
from downpour.core.spec import ResolvedSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class ExperimentNews:
    """The part that all events of an experiment share."""

    at_seconds: float
    experiment: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerNews:
    """The part that all events of a worker share."""

    at_seconds: float
    worker: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ExperimentSubmitted(ExperimentNews):
    """A client wants to run this spec; `version` is that of the manager that it asked.

    Of the waiting experiments, the one with the highest `priority` is next. `owner` is USER@HOST.
    """

    spec: ResolvedSpec
    version: str = ""
    owner: str = ""
    priority: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ExperimentCancelled(ExperimentNews):
    """A client wants to stop an experiment."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PauseAsked(ExperimentNews):
    """A client wants to pause an experiment, to continue it if not `paused`, or prioritize it."""

    paused: bool | None = None
    priority: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Best:
    """A model version that is better than every version evaluated before it, and its value.

    `model` is None if an earlier experiment compared the version, but did not keep it. A round
    before the experiment's first one has a negative number; see `Meetings`.
    """

    round: int
    value: float
    model: values.PublishedFile | None


def better(
    goal: Goal,
    former: Best | None,
    number: int,
    evaluation: Evaluation,
    model: values.PublishedFile,
) -> Best | None:
    """Return the better of the best so far and a round's model; of equals, the earlier round's.

    The result does not depend on the order of the evaluations. A value that is not a number is
    never best.
    """
    value = goal.value(evaluation)
    if value is None or goal.rank(value) == goal.rank(None):
        return former
    new = Best(round=number, value=value, model=model)
    if former is None:
        return new
    return max(new, former, key=lambda best: (goal.rank(best.value), -best.round))


@dataclass(frozen=True, slots=True, kw_only=True)
class HandedOn:
    """The state that an ended experiment leaves for the one that continues it, in own files.

    `states` are the states of the shards' optimizers, by shard. If rounds overlap, `steps` are the
    shards' last updates, and `former` is the version before the one that the experiment begins
    from. `best` is the best model so far, if the spec compares models. `unevaluated` are versions
    that the ended experiment should have compared, but did not; their rounds are negative.
    """

    states: tuple[tuple[int, values.PublishedFile], ...] = ()
    steps: tuple[tuple[int, values.PublishedFile], ...] = ()
    former: values.PublishedFile | None = None
    best: Best | None = None
    unevaluated: tuple[tuple[int, values.PublishedFile], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared(ExperimentNews):
    """The dataset is prepared and cut into shards, and the first model version is published.

    The name of a `dataset` follows from its content, so equal names mean equal examples. `frozen`
    holds the parameters that no task trains, if there are any; models and updates hold the others.
    `outer` is the first state of the outer optimizer, if the spec has one. If this experiment
    continues an earlier one, it starts with the state that was `handed_on`.
    `trial` has the checksums of the steps that each process repeats, if it trains a user's code.
    """

    dataset: str
    shard_samples: tuple[int, ...]
    model: values.PublishedFile
    frozen: values.PublishedFile | None = None
    trial: values.TrialSums | None = None
    outer: values.PublishedFile | None = None
    handed_on: HandedOn = HandedOn()


@dataclass(frozen=True, slots=True, kw_only=True)
class EffectFailed(ExperimentNews):
    """The driver could not carry out a command for an experiment.

    `asked_wrongly` is true if the spec is at fault, and not the cluster.
    """

    reason: str
    asked_wrongly: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerJoined(WorkerNews):
    """A worker has registered; if its name is known, this replaces the former registration.

    `running` is the attempt that it is training already, if the manager or the network was down for
    a while. `labels` are the user's labels for it, each as KEY=VALUE. `device` is the one that it
    trains on; empty if unknown. Workers of equal `numeric_class` give equal bytes;
    `processor_class` is its class for tasks on a CPU, if it trains others on another device. A
    worker that was restarted is another `process`; empty if unknown.
    """

    running: values.AttemptId | None = None
    labels: tuple[str, ...] = ()
    device: str = ""
    numeric_class: str = ""
    processor_class: str = ""
    process: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerLeft(WorkerNews):
    """A worker has announced that it leaves."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerLost(WorkerNews):
    """The manager could not reach a worker."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class HeartbeatReceived(WorkerNews):
    """A worker has reported its attempts and the state of its machine.

    The `process` figures are for the record; no decision uses them.
    """

    running: tuple[values.Progress, ...]
    system: values.SystemState
    process: values.ProcessState | None = None  # optional in the message


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdatePublished(WorkerNews):
    """An attempt has succeeded; its update is durable in the shared directory."""

    attempt: values.AttemptId
    update: values.Update


@dataclass(frozen=True, slots=True, kw_only=True)
class HandedOver(WorkerNews):
    """A worker has published the state of an attempt, as we asked, and has stopped it."""

    attempt: values.AttemptId
    snapshot: values.Snapshot


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecasts:
    """Forecasts from the workers' last reports.

    `paces` forecast a worker's seconds per sample if it began a shard now. `remaining` forecasts
    the seconds from an attempt's last report to its update.
    """

    at_seconds: float
    paces: tuple[tuple[str, values.Forecast], ...] = ()
    remaining: tuple[tuple[values.AttemptId, values.Forecast], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptFailed(WorkerNews):
    """An attempt has failed."""

    attempt: values.AttemptId
    failure: FailureKind
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Aggregated(ExperimentNews):
    """Updates have become the next model version, perhaps with the outer optimizer's state.

    `round` numbers aggregations. `mean` is the mean of the updates, if the version is ahead of it
    and we measure or publish it. `parts` are the tasks whose updates make up the version, by round
    and shard. It is empty if all updates that had arrived count, as they do in step. If shards keep
    their own parameters, `own` are the parameters with which the shards of `parts` continue, in
    that order.
    """

    round: int
    model: values.PublishedFile
    outer: values.PublishedFile | None = None
    mean: values.PublishedFile | None = None
    parts: tuple[tuple[int, int], ...] = ()
    own: tuple[values.PublishedFile, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class AggregationFailed(ExperimentNews):
    """Some of a round's updates are unusable: missing, altered, non-finite or of a wrong shape.

    `reasons` has at least one entry: a shard, and the fault of its update.
    """

    round: int
    reasons: tuple[tuple[int, str], ...]

    def __post_init__(self) -> None:
        if not self.reasons:
            # The round would wait forever, because it is complete, and no event would follow.
            raise ValueError("an aggregation that failed names at least one shard")


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluated(ExperimentNews):
    """The driver has evaluated a round's model version on a part of the examples."""

    round: int
    evaluation: Evaluation
    part: values.Part = "test"


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelPublished(ExperimentNews):
    """The experiment's result is published."""

    model: values.PublishedFile


@dataclass(frozen=True, slots=True, kw_only=True)
class Disturbed(ExperimentNews):
    """Someone disturbs a process on purpose: `what` happens to `who`, for people to read."""

    who: str
    what: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BlocksRead(ExperimentNews):
    """A worker was the first to read some blocks of the data; no decision depends on it."""

    worker: str
    digests: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tick:
    """Time has passed."""

    at_seconds: float


Event = (
    ExperimentSubmitted
    | ExperimentCancelled
    | PauseAsked
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
    | Disturbed
    | BlocksRead
    | Tick
)
