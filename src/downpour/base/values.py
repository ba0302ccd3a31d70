"""The small values that messages, files and the scheduler share; pure, and frozen.

They name things (a published file, an attempt) and carry measurements (an update, an evaluation,
the state of a machine). They never read or write anything: `files/store/` owns files,
`network/rpc/wire.py` turns these values into Thrift structs and back.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal, get_args

DEFAULT_PORT = 9090
"""The manager's port; here, because command lines show it before anything of Thrift is imported."""
DEFAULT_MANAGER = f"localhost:{DEFAULT_PORT}"
DEFAULT_SHARED = "shared_dir"
"""Where a manager is, and its shared directory, unless a user says so."""

NAME_BYTES_MAX = 200
BARE_NAME = f"a bare name: 1 to {NAME_BYTES_MAX} bytes, printable, no slash, no leading dot"


def is_bare_name(name: str) -> bool:
    """Whether a name cannot lead out of the directory it is looked up in, on any file system."""
    return (
        name.isprintable()
        and not name.startswith(".")
        and "/" not in name
        and "\\" not in name
        and 1 <= len(name.encode("utf-8", errors="surrogatepass")) <= NAME_BYTES_MAX
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedFile:
    """A file that is durable in an experiment's directory: a bare name, its size and checksum."""

    name: str
    size_bytes: int
    checksum: str


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class AttemptId:
    """One attempt at a task by one worker.

    The task is (experiment, round, shard), counted from 0; `attempt` numbers its tries. A
    contribution is identified by its task alone, never by the attempt.
    """

    experiment: str
    round: int
    shard: int
    attempt: int

    def __str__(self) -> str:
        return f"round {self.round} shard {self.shard} attempt {self.attempt}"


class ExperimentState(StrEnum):
    """The state of an experiment; `core/scheduler/lifecycle.py` has the steps between them."""

    WAITING = "waiting"
    PREPARING = "preparing"
    RUNNING = "running"
    FINISHED = "finished"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def ended(self) -> bool:
        """Whether the experiment has finished, failed or been cancelled."""
        return self in _ENDINGS


Ending = Literal[ExperimentState.FINISHED, ExperimentState.FAILED, ExperimentState.CANCELLED]
"""The states in which an experiment ends."""

_ENDINGS = frozenset(get_args(Ending))


class TaskState(StrEnum):
    """The state of a task in its round."""

    PENDING = "pending"
    RUNNING = "running"
    PUBLISHED = "published"
    APPLIED = "applied"
    DROPPED = "dropped"


class WorkerState(StrEnum):
    """The state of a worker; only an idle one can be assigned a task."""

    AWAITED = "awaited"
    IDLE = "idle"
    BUSY = "busy"
    STUCK = "stuck"
    GONE = "gone"


class FailureKind(StrEnum):
    """Why an attempt ended without an update; decides whether it costs its task a retry."""

    NON_FINITE = "non_finite"
    OUT_OF_MEMORY = "out_of_memory"
    STORE = "store"
    TASK = "task"
    CANCELLED = "cancelled"
    SPEC = "spec"
    OTHER_CODE = "other_code"
    LOST = "lost"
    HANDED_OVER = "handed_over"
    WITHDRAWN = "withdrawn"


BLAMELESS = frozenset(
    {
        FailureKind.CANCELLED,
        FailureKind.HANDED_OVER,
        FailureKind.WITHDRAWN,
        FailureKind.OTHER_CODE,
    }
)
"""The kinds that cost a task no retry: the attempt did not fail, but was not made or taken back."""

REPEATABLE = frozenset({FailureKind.NON_FINITE, FailureKind.TASK})
"""The kinds that may follow from the task alone; if they do, every worker fails alike."""


@dataclass(frozen=True, slots=True)
class Failure:
    """How an attempt failed; the reason names the step, and the line of the user's file."""

    kind: FailureKind
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Update:
    """What an attempt publishes: the file of its parameters, and how they were trained.

    `loss` is the sample-weighted mean over the task's batches, computed in float64; `steps` are
    optimizer steps; seconds are the worker's own clock.
    """

    file: PublishedFile
    samples: int
    steps: int
    loss: float
    load_seconds: float
    train_seconds: float
    publish_seconds: float
    optimizer_state: PublishedFile | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """The published state of a task in training, after `steps_done` steps.

    An attempt that goes on from it has the same bytes as one that never stopped.
    """

    file: PublishedFile
    steps_done: int
    steps_total: int

    @property
    def share(self) -> float:
        """How much of the task it holds, in 0..1."""
        return self.steps_done / self.steps_total if self.steps_total else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far a running attempt has come, and its newest snapshot, if there is one.

    `elapsed_seconds` run from the beginning of the attempt to the end of its last step, or of its
    loading, by the clock of the worker: two reports give a speed, whenever they were sent.
    """

    attempt: AttemptId
    steps_done: int
    steps_total: int
    elapsed_seconds: float
    snapshot: Snapshot | None = None

    @property
    def share(self) -> float:
        """How much of the task is done, in 0..1."""
        return self.steps_done / self.steps_total if self.steps_total else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SystemState:
    """The state of a worker's machine; shares are in 0..1."""

    cpu_others: float
    load_average: float
    memory_used: float
    io_wait: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessState:
    """What a worker's own process uses.

    `cpu_share` is 1.0 for one core in full, averaged since the sample before; `memory_bytes` are
    resident, those shared with other processes included.
    """

    cpu_share: float
    memory_bytes: int
    threads: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """The quantiles of a duration, in seconds: it is below `q10` with probability 0.1, and so on.

    The quantiles are in rising order.
    """

    q10: float
    q50: float
    q90: float
    q98: float

    @classmethod
    def of(cls, quantiles: Iterable[float]) -> Forecast:
        """Make a forecast of its four quantiles, in rising order."""
        q10, q50, q90, q98 = quantiles
        return cls(q10=q10, q50=q50, q90=q90, q98=q98)

    @property
    def quantiles(self) -> tuple[float, float, float, float]:
        """The four quantiles, in rising order."""
        return self.q10, self.q50, self.q90, self.q98

    def times(self, factor: float) -> Forecast:
        """Return the forecast of a duration multiplied by `factor`."""
        return Forecast.of(seconds * factor for seconds in self.quantiles)

    def later(self, seconds: float) -> Forecast:
        """Return the forecast of a duration that is longer by `seconds`."""
        return Forecast.of(each + seconds for each in self.quantiles)

    def after(self, seconds: float) -> Forecast:
        """Return the forecast of what is left after `seconds`; never negative."""
        return Forecast.of(max(0.0, each - seconds) for each in self.quantiles)


@dataclass(frozen=True, slots=True, kw_only=True)
class NumericClass:
    """What decides the bits of a floating-point result; equal classes give equal bytes.

    `instruction_set` names the processor's vendor, what torch chooses to use of it, and the
    variables of the environment that have a say.
    """

    torch: str
    device: str
    instruction_set: str

    def __str__(self) -> str:
        return f"torch {self.torch} on {self.device} ({self.instruction_set})"


Part = Literal["test", "validation"]
"""Examples that are not trained on: the test examples, and training examples that are set apart."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """How good a model version is on examples that it was not trained on.

    `metrics` are the task's means by name, in its order; displays show the first one, or the loss
    where there is none. `class_accuracy` has one entry a class, NaN for a class without examples,
    and is empty where targets are not classes.
    """

    loss: float
    metrics: Mapping[str, float]
    class_accuracy: tuple[float, ...]
    samples: int
    seconds: float


LOSS = "loss"
"""What the loss is called among the metrics; no metric has this name."""

_LESS_IS_BETTER = frozenset(
    {
        *{LOSS, "error", "errors", "err", "perplexity", "ppl", "nll", "bce", "mse", "rmse", "mae"},
        *{"mape", "wer", "cer", "bpb", "bpc", "fid", "distance", "divergence", "deviation"},
    }
)
"""Words in the names of metrics of which less is better."""


@dataclass(frozen=True, slots=True)
class Goal:
    """A metric, or the loss, by which models are compared, and whether less of it is better.

    Written as its name, or as "min:NAME" or "max:NAME". Without one of these its words decide: a
    loss, an error (as mean_absolute_error, rmse or wer), a perplexity or a distance is minimised,
    and all else is maximised.
    """

    metric: str
    minimised: bool

    @classmethod
    def of(cls, text: str) -> Goal:
        """Read a goal as it is written; raises ValueError if it names no metric."""
        direction, colon, name = text.partition(":")
        if colon and direction in {"min", "max"}:
            minimised = direction == "min"
        else:
            name = text
            words = "".join(c if c.isalpha() else " " for c in name.lower()).split()
            minimised = not _LESS_IS_BETTER.isdisjoint(words)
        if not name or not name.isprintable() or name != name.strip():
            raise ValueError(f"{text!r} names no metric")
        return cls(name, minimised)

    def __str__(self) -> str:
        if self == Goal.of(self.metric):
            return self.metric
        return f"{'min' if self.minimised else 'max'}:{self.metric}"

    def value(self, evaluation: Evaluation) -> float | None:
        """Return what it is of a model version; None if the task does not measure it."""
        return evaluation.loss if self.metric == LOSS else evaluation.metrics.get(self.metric)

    def rank(self, value: float | None) -> float:
        """Return a number that is larger for a better value; that of nothing is the smallest."""
        if value is None or value != value:  # noqa: PLR0124 - NaN alone differs from itself
            return float("-inf")
        return -value if self.minimised else value


def unmeasured(evaluation: Evaluation) -> str:
    """Say of a metric that the evaluation lacks it, and which it has."""
    return f"no such metric; these are measured: {', '.join([*evaluation.metrics, LOSS])}"


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetFacts:
    """What is known of a prepared dataset before an example of it is read.

    `classes` is 0 where targets are not classes (then `targets_per_sample` counts the numbers to
    be predicted); `sample_shape` is that of one example, channels first.
    """

    train_samples: int
    test_samples: int
    sample_shape: tuple[int, ...]
    classes: int
    targets_per_sample: int = 1
