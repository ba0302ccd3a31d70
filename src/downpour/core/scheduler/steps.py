"""Which model versions are published whole, and which lead to another one by their steps.

With a `model_compression` a version's file holds how far it has moved from the one before. So that
one must stay as long as it is needed, and the ones before it, back to a whole one. All versions
from there on stay, so that a version's number follows from its place among the kept ones.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Protocol

from downpour.base.values import PublishedFile
from downpour.core.scheduler.round import Round
from downpour.core.scheduler.shard_task import TaskKey
from downpour.core.spec import ResolvedSpec

WHOLE_EVERY = 32
"""Of versions that are published as steps, one of this many is whole, which all workers read. That
adds a bit a number to what a worker reads of each version. One that comes new reads a whole version
and at most 31 steps, which in three bits are as much as three more."""


class Versioned(Protocol):
    """The part of an experiment that this module uses, see `Experiment`."""

    spec: ResolvedSpec
    version: int
    models: list[PublishedFile]
    evaluated_versions: set[int]
    applying: tuple[TaskKey, ...]
    rounds: list[Round]

    @property
    def kept_best(self) -> PublishedFile | None:
        """The best model version, if the spec keeps it."""
        ...

    @property
    def kept_newest(self) -> int:
        """How many of the newest versions are kept."""
        ...

    def wants_evaluation(self, round_number: int) -> bool:
        """Whether to evaluate the model after a round."""
        ...


def is_whole(experiment: Versioned, version: int) -> bool:
    """Whether a version's file holds the whole model; also for the one that is being made."""
    if not experiment.spec.publishes_steps or version % WHOLE_EVERY == 0 or version < 0:
        return True
    # A version that may become the best one stays when the versions before it are gone.
    if experiment.spec.keep_best is None:
        return False
    if experiment.spec.in_step:
        return experiment.wants_evaluation(version - 1)
    if version <= experiment.version:
        return version in experiment.evaluated_versions
    return any(map(experiment.wants_evaluation, _ending(experiment)))


def _ending(experiment: Versioned) -> Iterator[int]:
    """Yield the rounds that end with the version that is being made."""
    applying = set(experiment.applying)
    for each in experiment.rounds:
        open_tasks = (TaskKey(each.number, t.shard) for t in each.tasks if not t.is_over)
        if not applying.issuperset(open_tasks):
            return
        yield each.number


def leading_to(experiment: Versioned, model: PublishedFile) -> tuple[PublishedFile, ...]:
    """Return the versions whose steps lead to one that is kept, the whole one first.

    None do if it is whole itself.
    """
    if not experiment.spec.publishes_steps or model == experiment.kept_best:
        return ()
    place = experiment.models.index(model)
    return tuple(experiment.models[_whole_before(experiment, place) : place])


def linked(experiment: Versioned, needed: Collection[str]) -> Sequence[PublishedFile]:
    """Return the versions that must stay because a step leads from them to a needed one.

    Args:
        experiment: The experiment.
        needed: The names of the versions that are needed, but for the best and the newest.
    """
    if not experiment.spec.publishes_steps:
        return ()
    newest = max(0, len(experiment.models) - experiment.kept_newest)
    named = (place for place, file in enumerate(experiment.models) if file.name in needed)
    return experiment.models[_whole_before(experiment, min([newest, *named])) :]


def _whole_before(experiment: Versioned, place: int) -> int:
    """Return the place of the whole version with which the steps to a version begin."""
    last = len(experiment.models) - 1
    while place > 0 and not is_whole(experiment, experiment.version - (last - place)):
        place -= 1
    return place
