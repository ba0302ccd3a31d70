"""Everything the scheduler can ask of its driver: a closed list of small frozen values.

The driver's duties, in order:

1. Log the facts of an event, and make result-changing ones durable.
2. Carry the commands out in the order given; long ones may run beside each other.
3. A file is durable and checksummed before any message names it.
4. Report each effect back as an event. `Prepare` comes back as `Prepared`, `Aggregate` as
    `Aggregated` or `AggregationFailed`, `Evaluate` as `Evaluated`, `Publish` as `ModelPublished`,
    and each find of `Adopt` as `UpdatePublished`. Failures come back as `EffectFailed`,
    `WorkerLost` or `AttemptFailed`. The core waits for these and asks only once. `Gather` may be
    left undone.
"""

from __future__ import annotations

from dataclasses import dataclass

from downpour.base.states import Ending
from downpour.base.values import AttemptId, Part, PublishedFile, Update
from downpour.core.scheduler.facts import Assigned
from downpour.core.spec import ResolvedSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepare:
    """Prepare the dataset, the shards and the first model version of an experiment.

    When an experiment goes on after a restart, `dataset` is the dataset that it began with, and
    `model` its newest version. The examples must be the same, and the driver makes no first model.
    `outer` is the state of its outer optimizer, `frozen` the file of its parameters that are never
    trained.
    """

    experiment: str
    spec: ResolvedSpec
    dataset: str | None = None
    model: PublishedFile | None = None
    outer: PublishedFile | None = None
    frozen: PublishedFile | None = None


@dataclass(frozen=True, slots=True)
class Assign:
    """Ask a worker for an attempt, or ask it again after it has registered without it.

    `leading` are the versions whose steps lead to the attempt's, see `steps.py`. If the task's last
    attempt could not read its files, we need the version in one file, because one of these may be
    gone.
    """

    assigned: Assigned
    leading: tuple[PublishedFile, ...] = ()
    in_one: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Cancel:
    """Ask a worker to stop an attempt that is no longer wanted."""

    worker: str
    attempt: AttemptId
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class HandOver:
    """Ask a worker to publish an attempt's state at its next step and stop; best effort.

    The answer is `HandedOver`, or by nothing: the worker may be lost, or end the attempt first.
    """

    worker: str
    attempt: AttemptId


@dataclass(frozen=True, slots=True, kw_only=True)
class Adopt:
    """Look for updates of these attempts that were published and not reported.

    Each update comes back as `UpdatePublished`, from the worker named here.
    """

    experiment: str
    attempts: tuple[tuple[AttemptId, str], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Push:
    """An update that is to become part of a model version.

    It is the step of a shard's task in a round from the version `base` on, which is as many
    versions old as its `staleness` says. The step is multiplied by its `weight` beside that of the
    aggregation.
    """

    round: int
    shard: int
    update: Update
    base: PublishedFile
    staleness: int = 0
    weight: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Aggregate:
    """Aggregate updates, given in the order of their rounds and shards, to the next model version.

    `round` numbers aggregations, and so the rounds themselves if shards are in step. `model` is the
    newest version, and `outer` the state of the outer optimizer that belongs to it, if the spec has
    one. If shards are not `in_step`, the version moves by the updates' steps or, if it `mixes`,
    toward their parameters. If it is `elastic`, these parameters also move toward the version, and
    the driver publishes them for each shard. `train_seconds` is the wall time from the first
    assignment of the oldest round to its last update. The driver publishes the new version as a
    difference from `model`, or whole. `versions` are the kept ones, oldest first, if some are
    differences.
    """

    experiment: str
    round: int
    model: PublishedFile
    whole: bool = True
    versions: tuple[PublishedFile, ...] = ()
    outer: PublishedFile | None = None
    pushes: tuple[Push, ...]
    in_step: bool = True
    mixes: bool = False
    elastic: bool = False
    train_seconds: float

    @property
    def parts(self) -> tuple[tuple[int, int], ...]:
        """The updates in the answer: in step these are all arrived ones, without mention."""
        return () if self.in_step else tuple((push.round, push.shard) for push in self.pushes)

    @property
    def shards(self) -> tuple[int, ...]:
        """The updates' shards."""
        return tuple(push.shard for push in self.pushes)

    @property
    def updates(self) -> tuple[Update, ...]:
        """The updates themselves."""
        return tuple(push.update for push in self.pushes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Gather:
    """Begin to sum an update that has arrived in a round in step, for which others are awaited.

    It is a hint, and has no answer: `Aggregate` names all updates that count, and gives the same
    bytes without it. `model` is the version that the round moves, and `base` the one that its tasks
    began from, which is an earlier one where rounds overlap.
    """

    experiment: str
    round: int
    shard: int
    update: Update
    model: PublishedFile
    base: PublishedFile


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluate:
    """Measure the model version of a round on a part of the examples.

    `leading` are the versions whose steps lead to it.
    """

    experiment: str
    round: int
    model: PublishedFile
    part: Part = "test"
    leading: tuple[PublishedFile, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Publish:
    """Publish an experiment's last model version as its result, and the best one if it is kept.

    `leading` are the versions whose steps lead to the last one.
    """

    experiment: str
    model: PublishedFile
    best: PublishedFile | None = None
    leading: tuple[PublishedFile, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Dismiss:
    """Forget a worker that has left or is lost."""

    worker: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Discard:
    """Remove files that are no longer needed; some may be gone already."""

    experiment: str
    files: tuple[PublishedFile, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Conclude:
    """Remove the files that an experiment needed only to go on; it has ended.

    The `kept` files stay: the shards of an experiment that continues this one begin with them.
    So do the `versions`, and the last state of the outer optimizer, which is among them.
    """

    experiment: str
    ending: Ending
    kept: tuple[PublishedFile, ...] = ()
    versions: tuple[PublishedFile, ...] = ()


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
