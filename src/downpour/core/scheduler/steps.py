"""Decides which versions are whole, keeps the files that they need, and finds the best version.

With a `model_compression`, a version's file holds its step from the version before. So as long as
we need a version, we keep the earlier ones as well, back to a whole one. All versions from there on
stay, so that a version's number follows from its place among the kept ones.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from downpour.base.states import Evaluation, Goal
from downpour.base.values import PublishedFile
from downpour.core.scheduler.round import Round, TaskKey
from downpour.core.spec import ResolvedSpec, Spec

WHOLE_EVERY = 32
"""If the manager publishes versions as steps, one in this many versions is whole, and all workers
read it. That adds one bit per number to what a worker reads for each version. A new worker reads a
whole version and at most 31 steps. In three bits per number, these steps are as large as three
whole versions."""


class Versioned(Protocol):
    """The part of an `Experiment` that this module uses."""

    spec: ResolvedSpec
    version: int
    models: list[PublishedFile]
    evaluated_versions: set[int]
    applying: tuple[TaskKey, ...]
    rounds: list[Round]

    @property
    def kept_best(self) -> PublishedFile | None:
        """The best model version, if the spec keeps it."""

    @property
    def kept_newest(self) -> int:
        """How many of the newest versions we keep."""

    def wants_evaluation(self, round_number: int) -> bool:
        """Whether to evaluate the model after a round."""


def is_whole(experiment: Versioned, version: int) -> bool:
    """Whether a version's file holds the whole model; works for the version in the making, too."""
    if not experiment.spec.publishes_steps or version % WHOLE_EVERY == 0 or version < 0:
        return True
    # A version that may become the best one outlives the versions before it.
    if experiment.spec.keep_best is None:
        return False
    if experiment.spec.in_step:
        return experiment.wants_evaluation(version - 1)
    if version <= experiment.version:
        return version in experiment.evaluated_versions
    return any(map(experiment.wants_evaluation, _ending(experiment)))


def _ending(experiment: Versioned) -> Iterator[int]:
    """Yield the rounds that end with the version in the making."""
    applying = set(experiment.applying)
    for each in experiment.rounds:
        open_tasks = (TaskKey(each.number, t.shard) for t in each.tasks if not t.is_over)
        if not applying.issuperset(open_tasks):
            return
        yield each.number


def leading_to(experiment: Versioned, model: PublishedFile) -> tuple[PublishedFile, ...]:
    """Return the versions whose steps lead to a kept version, the whole one first.

    The result is empty if the version is whole itself.
    """
    if not experiment.spec.publishes_steps or model == experiment.kept_best:
        return ()
    place = experiment.models.index(model)
    return tuple(experiment.models[_whole_before(experiment, place) : place])


def linked(experiment: Versioned, needed: Collection[str]) -> Sequence[PublishedFile]:
    """Return the versions that must stay because steps lead from them to a needed version.

    `needed` names the needed versions, except the best and the newest ones.
    """
    if not experiment.spec.publishes_steps:
        return ()
    newest = max(0, len(experiment.models) - experiment.kept_newest)
    named = (place for place, file in enumerate(experiment.models) if file.name in needed)
    return experiment.models[_whole_before(experiment, min([newest, *named])) :]


def _whole_before(experiment: Versioned, place: int) -> int:
    """Return the place of the whole version from which the steps to a version begin."""
    last = len(experiment.models) - 1
    while place > 0 and not is_whole(experiment, experiment.version - (last - place)):
        place -= 1
    return place


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
