"""The parts of a result, and its measures as people read them.

A task names its metrics. We show shares of right answers in percent, such as `accuracy` and
`top5_accuracy`. All other metrics, and the loss, are plain numbers.
"""

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import Self

import numpy as np

from downpour.base.errors import listed, one_line
from downpour.base.names import CPU
from downpour.base.states import BLAMELESS, LOSS
from downpour.base.values import Part
from downpour.core.splitters import ShardCounts
from downpour.network.rpc.messages import Status
from downpour.record.tables import MANAGER, Tables
from downpour.record.timeline import Stragglers

_SHARES = {"acc", "accuracy"}
_LARGE = 1000


@dataclass(frozen=True, slots=True)
class Measure:
    """A metric by its name, or the loss, whose name is `LOSS`, on a part of the examples.

    `most` is the largest known value. An accuracy above 1 is no share: its task counts otherwise.
    """

    name: str
    part: Part = "test"
    most: float = 1.0

    @classmethod
    def of(cls, name: str, values: Iterable[float | None], part: Part = "test") -> Self:
        """Return the measure of some values."""
        known = (value for value in values if value is not None and math.isfinite(value))
        return cls(name, part, max(known, default=1.0))

    @property
    def is_share(self) -> bool:
        """Whether its values are shares in 0..1 that people read in percent."""
        words = re.split(r"[^a-z]+", self.name.lower())
        return self.most <= 1 and not _SHARES.isdisjoint(words)

    @property
    def words(self) -> str:
        """Its name for people, in one line."""
        return one_line(self.name).replace("_", " ")

    @property
    def header(self) -> str:
        """Its header above a column of values, with the unit."""
        return f"{self.words} %" if self.is_share else self._on_part

    @property
    def axis(self) -> str:
        """Its label beside an axis, with the unit."""
        return f"{self.part} {self.words}, %" if self.is_share else self._on_part

    @property
    def key(self) -> str:
        """The key of a column of its values, for programs; the values are as people read them."""
        return f"{self.name}_percent" if self.is_share else self._on_part.replace(" ", "_")

    @property
    def file_stem(self) -> str:
        """Its name as a part of a file's name."""
        return re.sub(r"[^A-Za-z0-9._-]+", "-", self.name)

    @property
    def decimals(self) -> int:
        """How many of its decimals are worth reading."""
        return 2 if self.is_share else 4

    @property
    def _on_part(self) -> str:
        # Only the loss is also measured on the training examples.
        return f"{self.part} {LOSS}" if self.name == LOSS else self.words

    def shown(self, value: float | None) -> float | None:
        """Return a value in the unit that people read."""
        return 100 * value if self.is_share and value is not None else value

    def text(self, value: float) -> str:
        """Write a value with its unit: "91.82%", "0.2813"."""
        return f"{value:.2%}" if self.is_share and value <= 1 else number(value)


def number(value: float) -> str:
    """Write a number with four decimals, or a large one with four digits."""
    return f"{value:.4f}" if abs(value) < _LARGE else f"{value:.4g}"


def first_of(
    metrics: Mapping[str, float | None], loss: float | None
) -> tuple[Measure, float] | None:
    """Return the measure that stands for a model if there is room for only one: its first metric.

    Without metrics, return the loss; if nothing was measured, return None.
    """
    for name, value in ({**metrics} or {LOSS: loss}).items():
        if value is not None:
            return Measure(name), value
    return None


def in_words(metrics: Mapping[str, float | None], loss: float | None, part: Part = "test") -> str:
    """Say how good a model is in two words: "accuracy 91.82%"; empty if nothing was measured."""
    best = first_of(metrics, loss)
    on = "" if part == "test" else f"{part} "
    return f"{on}{best[0].words} {best[0].text(best[1])}" if best else ""


def names_of(measured: Iterable[Mapping[str, float | None]]) -> list[str]:
    """Return the names of all metrics in the order in which they first occur."""
    return list(dict.fromkeys(name for metrics in measured for name in metrics))


CONFIDENCE = 0.95


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean of `count` values, the half width of its interval, and their standard deviation.

    The last two are None for a single value.
    """

    mean: float
    half_width: float | None
    count: int
    deviation: float | None = None

    @classmethod
    def of(cls, values: Iterable[float | None]) -> Self | None:
        """Estimate from the measured values; None if there are none."""
        measured = [value for value in values if value is not None and math.isfinite(value)]
        if not measured:
            return None
        count = len(measured)
        if count == 1:
            return cls(measured[0], None, 1)
        deviation = stdev(measured)
        half_width = t_quantile(count - 1) * deviation / math.sqrt(count)
        return cls(fmean(measured), half_width, count, deviation)


def t_quantile(degrees: int, confidence: float = CONFIDENCE) -> float:
    """Return how many standard errors an interval, of 95 %, reaches to either side of a mean."""
    from scipy.special import stdtrit

    return float(stdtrit(degrees, (1 + confidence) / 2))


def split_of(tables: Tables) -> ShardCounts | None:
    """Return how many examples of each class each shard has; None if the record does not say."""
    prepared = tables.prepared
    if prepared is None or not prepared.shard_classes:
        return None
    sizes = np.array(prepared.shard_samples, np.int64)
    return ShardCounts(
        split=str(tables.spec["split"]),
        sizes=sizes,
        by_class=np.array(prepared.shard_classes, np.int64),
        held_out=prepared.train_samples - int(sizes.sum()),
    )


_MIXED = (
    "the workers have different numeric classes, so another run of this spec may give "
    "different bytes:"
)


def mixture_of(who_by_class: Mapping[str, Iterable[str]]) -> str:
    """List the processes of each numeric class if there are several; else return nothing."""
    if len(who_by_class) < 2:
        return ""
    lines = [f"{listed(list(who))}: {name}" for name, who in who_by_class.items()]
    return "\n  ".join([_MIXED, *lines])


def idle_cards(status: Status) -> str:
    """Count the accelerators of the workers' machines that have no worker; "" if there is none."""
    cards = {worker.hostname: worker.cards for worker in status.workers}
    used = {(w.hostname, w.device) for w in status.workers if w.cards and w.device != CPU}
    idle = sum(cards.values()) - len(used)
    return f"{idle} of {sum(cards.values())} accelerators have no worker" if idle > 0 else ""


def mixture_now(status: Status) -> str:
    """Return the warning for the current workers, and the manager if they train on its device."""
    who_by_class: dict[str, list[str]] = {}
    classes = [worker.numeric_class for worker in status.workers]
    own = status.numeric_class
    if own is not None and any(one is not None and one.device == own.device for one in classes):
        who_by_class[str(own)] = [MANAGER]
    for worker, its in zip(status.workers, classes, strict=True):
        if its is not None:
            who_by_class.setdefault(str(its), []).append(worker.worker)
    return mixture_of(who_by_class)


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


NOT_VERIFIED = "not verified: no two processes have trained the first steps to the same bytes"
