"""The closed list of the lines in an experiment's record.

Writers and readers share these types, so a report never guesses at keys. Rounds and shards count
from 0 here; reports show rounds to people as epochs from 1. Seconds are the manager's clock unless
a field says otherwise. We never change a line once it is written. A kind may gain fields with
defaults, and readers skip kinds and fields that they do not know.
"""

import re
from typing import Annotated, Any, NamedTuple, get_args

import msgspec

from downpour.base.errors import size_in_words
from downpour.base.names import CPU
from downpour.base.values import Part
from downpour.core.scheduler.outputs import Change

SHARD_CLASSES_MAX = 5_000
"""The most counts in a line, a few bytes each: a record has one such line, and people read it."""

Count = Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]
"""A number that a column of the live page can hold."""
Size = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
Long = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
"""A number that a message can hold."""


def word_for(name: str) -> str:
    """Return the word for a class in records and journals: `AttemptFailedLine` → attempt-failed."""
    # Readers skip a kind that they do not know, so if a word changed, reports of older records
    # would lose lines.
    return re.sub(r"(?<!^)(?=[A-Z])", "-", name.removesuffix("Line")).lower()


class _Line(msgspec.Struct, frozen=True, gc=False, tag_field="kind", tag=word_for):
    """A line; no line is a part of a cycle."""


class SubmittedLine(_Line, frozen=True, kw_only=True):
    """The manager accepted an experiment; `spec` holds the fields of the resolved spec."""

    experiment: str
    name: str
    spec: dict[str, Any]
    version: str
    shards: int
    owner: str = ""
    priority: int = 0


class WorkerJoinedLine(_Line, frozen=True, kw_only=True):
    """From now on, the manager may give tasks to a worker.

    `processor_class` is its class for tasks on a CPU, if its `numeric_class` belongs to another
    device.
    """

    worker: str
    address: str
    numeric_class: str
    processor_class: str = ""

    def class_for(self, asked: object) -> str:
        """Return the numeric class in which the worker trains a spec that asks for a device."""
        return self.processor_class or self.numeric_class if asked == CPU else self.numeric_class


class WorkerLeftLine(_Line, frozen=True, kw_only=True):
    """A worker was `lost`, or left on its own."""

    worker: str
    reason: str
    lost: bool


class OtherPackagesLine(_Line, frozen=True, kw_only=True):
    """A worker has other versions of packages than the manager: one phrase per package."""

    worker: str
    packages: tuple[str, ...]


class PreparedLine(_Line, frozen=True, kw_only=True):
    """Dataset, split and initial model are ready; `bytes` is the model file's size.

    `numeric_class` is that of the manager, which made the initial model. `dataset` is the key of
    the prepared dataset, `understood` describes how we read it, and `remarks` are its oddities.
    `warnings` name fields of the spec that have no effect. In the trial, a training step took
    `step_seconds` and `step_bytes` of memory. `frozen_bytes` is the size of the file with the
    untrained parameters. `checksum` is the initial model's. `shard_classes` counts each shard's
    examples of each class; it is empty for examples without classes, and for more than
    `SHARD_CLASSES_MAX` counts. `trial` is the checksum of the trial's steps in the manager, in the
    numeric class `tried_with`; both are empty without a user's code. Another process has
    `rehearsed` the steps with the same result.
    """

    train_samples: int
    test_samples: int
    classes: int
    shard_samples: tuple[int, ...]
    prepare_seconds: float
    split_seconds: float
    bytes: int
    parameters: int
    numeric_class: str
    dataset: str
    understood: str = ""
    remarks: tuple[str, ...] = ()
    step_seconds: float | None = None
    step_bytes: int | None = None
    frozen_bytes: int = 0
    checksum: str
    warnings: tuple[str, ...] = ()
    shard_classes: tuple[tuple[int, ...], ...] = ()
    trial: str = ""
    tried_with: str = ""
    rehearsed: bool = False


class AttemptLine(_Line, frozen=True, kw_only=True):
    """Something about an attempt at a shard."""

    round: Count
    shard: Count
    attempt: Count
    worker: str


class AssignedLine(AttemptLine, frozen=True, kw_only=True):
    """A worker got a task, for this reason; `from_step` is the step at which a snapshot ends.

    `share` is the part of the task's steps that it trains.

    The quantiles forecast the seconds from here to the update, which stay below `q10_seconds` with
    probability 0.1, and so on. They are None if there was no forecast.
    """

    reason: str
    from_step: Count = 0
    share: float = 1.0
    q10_seconds: float | None = None
    q50_seconds: float | None = None
    q90_seconds: float | None = None


class ForeseenLine(AttemptLine, frozen=True, kw_only=True):
    """The forecast of a running attempt.

    The manager records one after each quarter of the attempt's work, and when another worker is to
    continue it; more lines would bloat the record. `done` is the share of the shard, in 0..1, that
    the worker had trained `elapsed_seconds` after the assignment. The quantiles are those of all
    seconds from the assignment to the update, as in `AssignedLine`.
    """

    done: float
    elapsed_seconds: float
    q10_seconds: float | None = None
    q50_seconds: float | None = None
    q90_seconds: float | None = None


class PhaseLine(AttemptLine, frozen=True, kw_only=True):
    """The worker of an attempt loads, saves or publishes for some seconds, or trains again.

    `moved_bytes` are those of the files that it has read and written since its last step. An update
    has `whole_bytes`; 0 if that is unknown.
    """

    phase: str
    moved_bytes: Size = 0
    whole_bytes: Size = 0

    def __str__(self) -> str:
        size = size_in_words(self.moved_bytes, self.whole_bytes) if self.moved_bytes else ""
        return f"{self.phase} {size}".strip()


class SavedLine(AttemptLine, frozen=True, kw_only=True):
    """An attempt published a snapshot after `step` steps; the next worker continues from it."""

    step: Count
    bytes: Size


class HandOverAskedLine(AttemptLine, frozen=True, kw_only=True):
    """The manager asked a worker to hand an attempt over to another worker, for this reason."""

    meant_for: str
    reason: str


class ContradictedLine(AttemptLine, frozen=True, kw_only=True):
    """Two attempts at one shard gave different bytes; the first accepted update counts.

    These workers do not compute alike, so this experiment is not repeatable to the byte.
    """

    accepted_from: str
    checksum: str
    accepted_checksum: str

    def __str__(self) -> str:
        return (
            f"round {self.round + 1} shard {self.shard}: {self.worker} and "
            f"{self.accepted_from} made different updates of it, so their arithmetic "
            "differs; the first update counts"
        )


class WithheldLine(AttemptLine, frozen=True, kw_only=True):
    """The update of an audited task does not count before another worker has trained the task."""

    checksum: str
    completion_seconds: float


class QuarantinedLine(AttemptLine, frozen=True, kw_only=True):
    """A worker computes wrong, as this attempt showed, and gets no more tasks.

    It trained `unaudited` tasks since its last good audit, from the round `unaudited_since` on.
    """

    reason: str
    unaudited: int
    unaudited_since: int | None


class UpdatedLine(AttemptLine, frozen=True, kw_only=True):
    """An attempt published its update, which counts.

    The worker's clock measures load, train and publish seconds; `completion_seconds` run from the
    assignment to the report. `checksum` is the update's. `processes` is the number of the worker's
    processes that computed the last step. `shortages` counts the steps of the experiment so far
    that lacked memory, on the host or an accelerator. `trial` is the checksum of the trial's steps
    in the worker's process, if it repeated them. An audit compared it with equal updates of the
    workers in `confirmed_by`. `step_losses` are the mean losses of stretches of the steps, and
    `step_rates` the learning rates at their ends. The k-th of n ends after k / n, rounded up.
    """

    samples: Count
    steps: Count
    loss: float
    load_seconds: float
    train_seconds: float
    publish_seconds: float
    completion_seconds: float
    bytes: Size
    checksum: str
    processes: Count = 1
    shortages: Count = 0
    trial: str = ""
    confirmed_by: tuple[str, ...] = ()
    step_losses: tuple[float, ...] = ()
    step_rates: tuple[float, ...] = ()


class Sample(NamedTuple):
    """A process's resources at a moment of the manager's clock; a list in JSON, to be short.

    `cpu_share` is 1.0 for one full core, averaged since the previous heartbeat. `memory_bytes` are
    resident. `io_wait` is the share, in 0..1, of the machine's processor time spent waiting for
    disks.
    """

    at_seconds: float
    cpu_share: float
    memory_bytes: Long
    threads: Long
    io_wait: float


class ResourcesUsedLine(AttemptLine, frozen=True, kw_only=True):
    """The resources of an attempt's process while it trained, from its worker's heartbeats.

    For a long attempt, we keep every second sample, or fewer, spread over its whole duration.
    """

    samples: tuple[Sample, ...]


class AttemptFailedLine(AttemptLine, frozen=True, kw_only=True):
    """An attempt failed; `failure` is its kind."""

    failure: str
    reason: str


class RescheduledLine(_Line, frozen=True, kw_only=True):
    """A user rescheduled the experiment, or it was set aside: no worker trains it.

    If it has "begun beside" another one, it has the workers that this one cannot use.
    """

    change: Change
    priority: int = 0


class BegunLine(_Line, frozen=True, kw_only=True):
    """It is the experiment's turn: the manager prepares its first round or its continuation."""


class DroppedLine(_Line, frozen=True, kw_only=True):
    """The manager closed a round without these shards, for this reason."""

    round: int
    shards: tuple[int, ...]
    reason: str


class ResizedLine(_Line, frozen=True, kw_only=True):
    """The manager cut a round into shards of these sizes, in samples, for this reason."""

    round: int
    samples: tuple[int, ...]
    reason: str


class WorkerRequestedLine(_Line, frozen=True, kw_only=True):
    """A policy asked for one more worker, for this reason; possibly none starts."""

    reason: str


class DisturbedLine(_Line, frozen=True, kw_only=True):
    """Someone disturbed a process on purpose: `who` is a worker's name or the manager."""

    who: str
    what: str

    def __str__(self) -> str:
        return f"{self.who} {self.what}"


class ExplainedLine(_Line, frozen=True, kw_only=True):
    """Why the policy leaves a late shard with a worker, or gives that worker no waiting shard.

    The record has one per round and shard, and one for each time that a worker begins to stand by.
    """

    round: int
    worker: str
    reason: str
    shard: int | None = None


class AggregatedLine(_Line, frozen=True, kw_only=True):
    """Updates became the next model version.

    `round` numbers aggregations; if shards are in step, these are rounds. `train_seconds` run from
    the round's first assignment to its last update or, if shards are not in step, from the previous
    version to this aggregation. `loss` is the sample-weighted mean of the updates' losses. If
    shards are not in step, `parts` are the version's tasks, by round and shard. `staleness` is the
    age, in versions, of the models that they began from. `summed` names the order of the additions
    in a round in step; another order gives different rounding. `checksum` is that of the version's
    file, which is `whole`, or else a step from the previous version. `mean` is the checksum of the
    mean of the updates, if the version is ahead of it and the mean was measured or published.
    """

    round: int
    version: int
    file: str
    bytes: int
    seconds: float
    train_seconds: float
    loss: float
    parts: tuple[tuple[int, int], ...] = ()
    staleness: tuple[int, ...] = ()
    summed: str
    whole: bool
    checksum: str
    mean: str = ""


class EvaluatedLine(_Line, frozen=True, kw_only=True, tag="measured"):
    """The model's quality after a round: its loss, and the task's metrics by name, in order.

    `class_accuracy` has one entry per class, NaN for a class without examples. `part` names the
    examples: the spec's `validation` sets training examples apart for evaluations.
    """

    round: int
    loss: float
    metrics: dict[str, float]
    class_accuracy: tuple[float, ...]
    seconds: float
    part: Part = "test"


class ImprovedLine(_Line, frozen=True, kw_only=True):
    """The model after a round, in `file`, is the best so far.

    `value` is the metric that the spec's `keep_best` names, or the loss. A round below 0 belongs to
    an earlier experiment that this one continues; `file` is empty if that one did not keep it.
    """

    round: int
    value: float
    file: str


class FinishedLine(_Line, frozen=True, kw_only=True):
    """The experiment is done; `file` is the name of the final model.

    `reason` says why there were no more rounds; `checksum` is the final model's.
    """

    file: str
    total_seconds: float
    reason: str
    checksum: str


class FailedLine(_Line, frozen=True, kw_only=True):
    """The experiment ended without a model; `asked_wrongly` if the user must correct the spec."""

    reason: str
    asked_wrongly: bool


class BlocksReadLine(_Line, frozen=True, kw_only=True):
    """A worker was the first to read these blocks of the data; the digests are XXH3-128."""

    worker: str
    digests: dict[str, str]


class CancelledLine(_Line, frozen=True, kw_only=True):
    """The experiment was cancelled."""

    reason: str


WorkerChange = (
    WorkerJoinedLine | WorkerLeftLine | OtherPackagesLine | QuarantinedLine | DisturbedLine
)
EndLine = FinishedLine | FailedLine | CancelledLine
RecordLine = (
    SubmittedLine
    | WorkerJoinedLine
    | WorkerLeftLine
    | OtherPackagesLine
    | PreparedLine
    | AssignedLine
    | ForeseenLine
    | PhaseLine
    | SavedLine
    | ContradictedLine
    | HandOverAskedLine
    | RescheduledLine
    | BegunLine
    | DroppedLine
    | ResizedLine
    | WorkerRequestedLine
    | ExplainedLine
    | DisturbedLine
    | BlocksReadLine
    | WithheldLine
    | QuarantinedLine
    | UpdatedLine
    | ResourcesUsedLine
    | AttemptFailedLine
    | AggregatedLine
    | EvaluatedLine
    | ImprovedLine
    | EndLine
)

Dated = tuple[float, RecordLine]
"""A line of a record, after its time."""
MaybeKnown = tuple[float, RecordLine | None]


def kind_of(line: RecordLine | type[RecordLine]) -> str:
    """Return the word for a line, or for all lines of a type."""
    return str(line.__struct_config__.tag)


KINDS: dict[str, type[RecordLine]] = {kind_of(line): line for line in get_args(RecordLine)}
