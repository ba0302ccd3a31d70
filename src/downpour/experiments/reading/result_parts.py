"""The parts of a result: an epoch, a task, a failed attempt, the best model."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from downpour.base.evaluations import LOSS
from downpour.base.states import BLAMELESS
from downpour.experiments.reading.measures import in_words
from downpour.experiments.reading.mitigation import Stragglers


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundResult:
    """A round, or all rounds of an epoch: how good the model became, and what that took.

    `round` is the number of the round, or of the epoch's last round so far.
    Metrics and `test_loss` are of the test examples, or of the examples that the spec's
    `validation` sets apart. `metrics` are the task's, by name, and empty if Downpour did not
    evaluate the model; an accuracy is a share in 0..1. `train_seconds` run from the first
    assignment to the last update and leave out evaluation; `bytes` are those of the updates and of
    the model they became.
    `stragglers` is set if a policy was used, or work was lost.
    """

    epoch: int
    round: int
    metrics: dict[str, float | None]
    class_accuracy: tuple[float | None, ...]
    train_loss: float | None
    test_loss: float | None
    train_seconds: float
    aggregate_seconds: float
    evaluate_seconds: float
    bytes: int
    stragglers: Stragglers | None = None

    def __repr__(self) -> str:
        """Say in one line which round it is, and how good the model became."""
        good = in_words(self.metrics, self.test_loss)
        parts = [f"epoch {self.epoch}, round {self.round}", *([good] if good else [])]
        return f"<RoundResult {', '.join(parts)}, {self.train_seconds:.1f} s>"

    @property
    def accuracy(self) -> float | None:
        """The metric "accuracy"; None if the task has none, or the model was not evaluated."""
        return self.metrics.get("accuracy")

    def measured(self, name: str) -> float | None:
        """Return a metric by its name, or the loss on the test examples as "loss"."""
        return self.test_loss if name == LOSS else self.metrics.get(name)


@dataclass(frozen=True, slots=True, kw_only=True)
class TestResult:
    """How good a model was on the test examples, if the spec set others apart for validation.

    It is the model after `epoch`: the best if the spec keeps it, otherwise the last.
    """

    __test__ = False

    epoch: int
    metrics: dict[str, float | None]
    class_accuracy: tuple[float | None, ...]
    loss: float | None

    def measured(self, name: str) -> float | None:
        """Return a metric by its name, or the loss as "loss"."""
        return self.loss if name == LOSS else self.metrics.get(name)


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskResult:
    """A shard trained in a round: by which worker and how fast.

    `completion_seconds` run from the assignment to the report, on the manager's clock; the other
    seconds are the worker's own. If a task was `retrained`, it had another update before, which was
    lost when a manager crashed, or found damaged. The worker computed the last step with this many
    `processes`. In `shortages` steps of the experiment, it has run short of memory so far.
    """

    epoch: int
    round: int
    shard: int
    attempt: int
    worker: str
    samples: int
    steps: int
    loss: float | None
    load_seconds: float
    train_seconds: float
    publish_seconds: float
    completion_seconds: float
    bytes: int
    retrained: bool = False
    processes: int = 1
    shortages: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureResult:
    """An attempt without an update; `blameless` if a decision, such as a move, ended it.

    With `update_lost`, it had an update, which was lost when a manager crashed, or found damaged.
    """

    epoch: int
    round: int
    shard: int
    attempt: int
    worker: str
    failure: str
    reason: str
    update_lost: bool = False

    @property
    def blameless(self) -> bool:
        """Whether nothing failed: the work continued elsewhere, or was no longer needed."""
        return self.failure in BLAMELESS


@dataclass(frozen=True, slots=True, kw_only=True)
class BestModel:
    """The best model so far: its epoch, and its value of the `metric`, or of the loss.

    `file` is its path, if the spec keeps it and the experiment's folder is known.
    """

    epoch: int
    metric: str
    value: float
    file: Path | None
