"""States of experiments, tasks and workers, the steps between them, and how long the manager waits.

A *task* is pending until the scheduler asks a worker to train it. While the task runs, the
scheduler may ask other workers as well, and take it from them again. When no worker holds the task,
it is pending again. When an attempt publishes its update, the task is published. The scheduler may
still refuse a published update, if its file turns out to be unusable; then the task is pending
again. A task is final once it is applied, or dropped because the round closed without it. Late
updates count: an attempt that the scheduler gave up may still publish its task. After a refusal,
earlier attempts may no longer do so, because the scheduler has removed the files of late updates as
unneeded.

A *worker* is idle, or busy with exactly one attempt, until it is gone. A worker that registers
again begins a new life. When an attempt ends, by an update, a failure or a cancellation, its worker
becomes idle in the same step. A worker that still trains something that it should not is stuck
until it reports no attempt. An idle worker that can train no open experiment is shown as unfit. A
worker that the scheduler knows only from the journal is awaited: it keeps its
attempt, and the scheduler asks it for nothing, until it registers with this manager.

An *experiment* waits in the queue, is prepared, runs and ends. If a user pauses it, the scheduler
sets it aside once no worker trains it any more. It then waits for its turn like a new one.

A step that is not in its table raises `IllegalTransition` with the steps that led there.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Generic, Literal, TypeVar, get_args

from downpour.base.errors import IllegalTransition


class ExperimentState(StrEnum):
    """The state of an experiment."""

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
    UNFIT = "unfit"
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
    DATASET = "dataset"
    HANDED_OVER = "handed_over"
    WITHDRAWN = "withdrawn"


BLAMELESS = frozenset(
    {
        FailureKind.CANCELLED,
        FailureKind.HANDED_OVER,
        FailureKind.WITHDRAWN,
        FailureKind.OTHER_CODE,
        FailureKind.DATASET,
    }
)
"""Kinds that cost a task no retry: the attempt never began, or was stopped on purpose."""
REPEATABLE = frozenset({FailureKind.NON_FINITE, FailureKind.TASK})
"""Kinds that the task alone may cause; if it does, every worker fails in the same way."""


@dataclass(frozen=True, slots=True)
class Failure:
    """How an attempt failed; the reason names the step, and the line of the user's file."""

    kind: FailureKind
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """The quality of a model version on examples that were not in its training.

    `metrics` maps names to means, in the task's order. Displays show the first metric, or the loss
    if there are none. Loss and metrics may be NaN or infinite. `class_accuracy` has one entry per
    class (NaN for a class without examples). It is empty if targets are not classes.
    """

    loss: float
    metrics: Mapping[str, float]
    class_accuracy: tuple[float, ...]
    samples: int
    seconds: float


LOSS = "loss"
"""The name of the loss among the metrics; no metric has this name."""
_LESS_IS_BETTER = frozenset(
    {
        *{LOSS, "error", "errors", "err", "perplexity", "ppl", "nll", "bce", "mse", "rmse", "mae"},
        *{"mape", "wer", "cer", "bpb", "bpc", "fid", "distance", "divergence", "deviation"},
    }
)
"""Words in the names of metrics for which less is better."""


@dataclass(frozen=True, slots=True)
class Goal:
    """The metric (or the loss) that ranks models, and whether less of it is better.

    Users write its name, or "min:NAME" or "max:NAME". Without a prefix, the words of the name
    decide: less is better for a loss, an error (rmse, wer), a perplexity or a distance, else more.
    """

    metric: str
    minimised: bool

    @classmethod
    def of(cls, text: str) -> Goal:
        """Read a goal as users write it; raises ValueError if it names no metric."""
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
        """Return the metric's value for a model version; None if the task does not measure it."""
        return evaluation.loss if self.metric == LOSS else evaluation.metrics.get(self.metric)

    def rank(self, value: float | None) -> float:
        """Return a number that is larger for a better value, and smallest if it is no number."""
        if value is None or not math.isfinite(value):
            return float("-inf")
        return -value if self.minimised else value


def unmeasured(evaluation: Evaluation) -> str:
    """Say that the evaluation lacks a metric, and list its metrics."""
    return f"no such metric; the task measures {', '.join([*evaluation.metrics, LOSS])}"


EventKind = Literal[
    "submitted",
    "finished",
    "failed",
    "cancelled",
    "waiting",
    "worker-joined",
    "worker-left",
    "worker-lost",
]
TOLD: frozenset[EventKind] = frozenset({"finished", "failed", "cancelled", "waiting"})
"""The kinds for which we run a command: a person may want to act on these."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExperimentEvent:
    """Something that happened to an experiment.

    `kind` is one of "submitted", "finished", "failed", "cancelled", "waiting", "worker-joined",
    "worker-left" and "worker-lost". An experiment is "waiting" if for a minute no worker trains it,
    or none ends a step. `experiment` is its identifier, `name` the spec's name, and `state` its
    state after the event. `reason` says why, if there is a reason. `worker` is the worker that
    joined, left or was lost.
    """

    kind: EventKind
    experiment: str = ""
    name: str = ""
    state: ExperimentState | None = None
    reason: str = ""
    worker: str = ""

    def __repr__(self) -> str:
        """Describe the event in one line; quote the reason, which may hold anything."""
        parts = [self.kind, self.experiment, self.worker, repr(self.reason) if self.reason else ""]
        return f"<ExperimentEvent {' '.join(filter(None, parts))}>"


# Steps are literals and not members of an enum, because a step is only ever an argument. mypy
# checks both, but in Python 3.11 looking up a member takes six times as long as comparing text.
TaskStep = Literal["assign", "lose", "publish", "give-up", "refuse", "apply", "drop"]
WorkerStep = Literal["register", "assign", "release", "stick", "go"]
ExperimentStep = Literal["activate", "start", "set-aside", "finish", "cancel", "fail"]

State = TypeVar("State", bound=StrEnum)
Step = TypeVar("Step", bound=str)
Table = Mapping[tuple[State, Step], State]

TASK: Table[TaskState, TaskStep] = {
    (TaskState.PENDING, "assign"): TaskState.RUNNING,
    # A late update: the scheduler gave up its attempt, and the worker had not heard of it yet.
    (TaskState.PENDING, "publish"): TaskState.PUBLISHED,
    # Copies: the scheduler asks a second worker as well, and one of several loses its attempt.
    (TaskState.RUNNING, "assign"): TaskState.RUNNING,
    (TaskState.RUNNING, "lose"): TaskState.RUNNING,
    (TaskState.RUNNING, "publish"): TaskState.PUBLISHED,
    (TaskState.RUNNING, "give-up"): TaskState.PENDING,
    (TaskState.PUBLISHED, "refuse"): TaskState.PENDING,
    (TaskState.PUBLISHED, "apply"): TaskState.APPLIED,
    # Not from published, because an existing update counts.
    (TaskState.PENDING, "drop"): TaskState.DROPPED,
    (TaskState.RUNNING, "drop"): TaskState.DROPPED,
}

WORKER: Table[WorkerState, WorkerStep] = {
    (WorkerState.AWAITED, "register"): WorkerState.BUSY,
    (WorkerState.AWAITED, "go"): WorkerState.GONE,
    (WorkerState.IDLE, "assign"): WorkerState.BUSY,
    (WorkerState.BUSY, "release"): WorkerState.IDLE,
    # An idle worker is stuck if it joins with another attempt.
    (WorkerState.IDLE, "stick"): WorkerState.STUCK,
    (WorkerState.BUSY, "stick"): WorkerState.STUCK,
    (WorkerState.STUCK, "release"): WorkerState.IDLE,
    (WorkerState.IDLE, "go"): WorkerState.GONE,
    (WorkerState.BUSY, "go"): WorkerState.GONE,
    (WorkerState.STUCK, "go"): WorkerState.GONE,
}

EXPERIMENT: Table[ExperimentState, ExperimentStep] = {
    (ExperimentState.WAITING, "activate"): ExperimentState.PREPARING,
    (ExperimentState.PREPARING, "start"): ExperimentState.RUNNING,
    # Also if a restarted manager finds that another experiment comes first.
    (ExperimentState.PREPARING, "set-aside"): ExperimentState.WAITING,
    (ExperimentState.RUNNING, "set-aside"): ExperimentState.WAITING,
    (ExperimentState.RUNNING, "finish"): ExperimentState.FINISHED,
    (ExperimentState.WAITING, "cancel"): ExperimentState.CANCELLED,
    (ExperimentState.PREPARING, "cancel"): ExperimentState.CANCELLED,
    (ExperimentState.RUNNING, "cancel"): ExperimentState.CANCELLED,
    (ExperimentState.PREPARING, "fail"): ExperimentState.FAILED,
    (ExperimentState.RUNNING, "fail"): ExperimentState.FAILED,
}

# We limit the story, because a worker takes two steps per task for as long as it lives.
_STORY_LENGTH = 32


class Lifecycle(Generic[State, Step]):
    """A state that changes by a table; it remembers its last steps for error messages."""

    __slots__ = ("_story", "_table", "state", "who")

    def __init__(self, who: str, table: Table[State, Step], state: State) -> None:
        self.who = who
        self.state = state
        self._table = table
        self._story: tuple[str, ...] = (state,)

    def step(self, name: Step) -> None:
        """Take a step; raises IllegalTransition if the table does not have it."""
        after = self._table.get((self.state, name))
        if after is None:
            raise IllegalTransition(self.who, self.state, name, self._story)
        self._story = (*self._story[1 - _STORY_LENGTH :], f"{name} → {after}")
        self.state = after

    def may(self, name: Step) -> bool:
        """Whether the table has this step from the present state."""
        return (self.state, name) in self._table


HEARTBEATS_A_SECOND = 500
"""Heartbeats per second from all workers together.

Each costs the manager 0.3 to 0.6 ms of one thread, so all of them take about a quarter of that
thread. Up to 500 idle workers still report once a second.
"""

_FADING = 0.98
"""How much of the longest gap is left after each shorter one: half of it after 35 gaps."""


@dataclass(slots=True, kw_only=True, eq=False)
class AdaptiveTimeout:
    """A timeout in seconds: a multiple (`times`) of the longest recent gap, which fades slowly.

    It is at least `shortest_seconds`, and `unobserved_seconds` while gaps are `missing`. Timeouts
    are for a `patience` of 1; the scheduler multiplies them by the patience in its options.
    """

    unobserved_seconds: float
    shortest_seconds: float
    times: float
    missing: int
    longest_seconds: float = 0.0

    def learn(self, gap_seconds: float) -> None:
        """Note a gap that ended well."""
        # We use the longest gap and not the mean. Declaring a healthy worker lost costs its
        # attempt, while waiting a little longer for a dead one costs only seconds.
        self.missing = max(0, self.missing - 1)
        self.longest_seconds = max(gap_seconds, _FADING * self.longest_seconds)

    @property
    def seconds(self) -> float:
        """The timeout now."""
        if self.missing:
            return self.unobserved_seconds
        return max(self.shortest_seconds, self.times * self.longest_seconds)


def heartbeat_timeout() -> AdaptiveTimeout:
    """Limit the time between two heartbeats of a worker."""
    # Heartbeats come at least once a second, so at least five in a row are missing by then.
    return AdaptiveTimeout(unobserved_seconds=10.0, shortest_seconds=5.0, times=4.0, missing=3)


def progress_timeout() -> AdaptiveTimeout:
    """Limit the time between two steps, as learned from attempts that published their update."""
    # Before the first update, we allow ten minutes. An attempt's first pause includes the import of
    # torch and the loading of the examples, and we can't know beforehand how long these take.
    return AdaptiveTimeout(unobserved_seconds=600.0, shortest_seconds=60.0, times=10.0, missing=1)
