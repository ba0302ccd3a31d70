"""States of experiments and tasks, evaluations, and what users hear of an experiment."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal, get_args


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
    "worker-left" and "worker-lost". An experiment is "waiting" if no worker has trained it for a
    while. `experiment` is its identifier, `name` the spec's name, and `state` its state after the
    event. `reason` says why, if there is a reason. `worker` is the worker that joined, left or was
    lost. A manager without open experiments also sends "waiting", and names no experiment.
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
