"""The best model version so far, by the spec's measure."""

from __future__ import annotations

from dataclasses import dataclass

from downpour.base.evaluations import Evaluation, Goal
from downpour.base.values import PublishedFile


@dataclass(frozen=True, slots=True, kw_only=True)
class Best:
    """A model version that is better than every version evaluated before it, and its value."""

    round: int
    value: float
    model: PublishedFile


def better(
    goal: Goal, former: Best | None, number: int, evaluation: Evaluation, model: PublishedFile
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
