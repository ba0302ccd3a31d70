"""The best model version so far, by the spec's measure."""

from __future__ import annotations

from dataclasses import dataclass

from downpour.base.evaluations import Evaluation, Goal
from downpour.base.values import PublishedFile
from downpour.core.spec import Spec


@dataclass(frozen=True, slots=True, kw_only=True)
class Best:
    """A model version that is better than every version evaluated before it, and its value.

    `model` is None if an earlier experiment compared the version, but did not keep it. A round
    before the experiment's first one has a negative number; see `Meetings`.
    """

    round: int
    value: float
    model: PublishedFile | None


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


def evaluated_before(spec: Spec) -> int:
    """Return the last round that was due for an evaluation before the experiment's first one."""
    epochs = spec.meetings.epochs_before
    return spec.meetings.last_of(epochs - epochs % max(1, spec.evaluate_every))


def compared_from(spec: Spec) -> int:
    """Return the round after which `stop_after` counts the epochs without a better model.

    It counts from the beginning of the training, unless no earlier model can be compared.
    """
    if spec.best_checksum is None:
        return evaluated_before(spec)
    return spec.meetings.last_of(0)
