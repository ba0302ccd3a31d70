"""Evaluations of a model by named metrics, and the goal by which to compare models."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass


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
    decide: less is better for a loss, an error (mean_absolute_error, rmse or wer), a perplexity or
    a distance, and more is better for all others.
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
