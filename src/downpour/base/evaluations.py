"""How good a model is, by name, and by what models are compared."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


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
    return f"no such metric; the task measures {', '.join([*evaluation.metrics, LOSS])}"
