"""Decides which versions are whole, and keeps the files that versions need.

With a `model_compression`, a version's file holds its step from the version before. So as long as
we need a version, we keep the earlier ones as well, back to a whole one. All versions from there on
stay, so that a version's number follows from its place among the kept ones.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from downpour.base.values import PublishedFile
from downpour.core.scheduler.experiment import Experiment
from downpour.core.scheduler.round import TaskKey

WHOLE_EVERY = 32
"""If the manager publishes versions as steps, one in this many versions is whole, and all workers
read it. That adds one bit per number to what a worker reads for each version. A new worker reads a
whole version and at most 31 steps. In three bits per number, these steps are as large as three
whole versions."""


def is_whole(experiment: Experiment, version: int) -> bool:
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


def _ending(experiment: Experiment) -> Iterator[int]:
    """Yield the rounds that end with the version in the making."""
    applying = set(experiment.applying)
    for each in experiment.rounds:
        open_tasks = (TaskKey(each.number, t.shard) for t in each.tasks if not t.is_over)
        if not applying.issuperset(open_tasks):
            return
        yield each.number


def leading_to(experiment: Experiment, model: PublishedFile) -> tuple[PublishedFile, ...]:
    """Return the versions whose steps lead to a kept version, the whole one first.

    The result is empty if the version is whole itself.
    """
    if not experiment.spec.publishes_steps or model == experiment.kept_best:
        return ()
    place = experiment.models.index(model)
    return tuple(experiment.models[_whole_before(experiment, place) : place])


def linked(experiment: Experiment, needed: Collection[str]) -> Sequence[PublishedFile]:
    """Return the versions that must stay because steps lead from them to a needed version.

    `needed` names the needed versions, except the best and the newest ones.
    """
    if not experiment.spec.publishes_steps:
        return ()
    newest = max(0, len(experiment.models) - experiment.kept_newest)
    named = (place for place, file in enumerate(experiment.models) if file.name in needed)
    return experiment.models[_whole_before(experiment, min([newest, *named])) :]


def spent_models(experiment: Experiment) -> tuple[PublishedFile, ...]:
    """Remove and return the model versions that are neither kept nor being evaluated."""
    needed = {file.name for file in (*experiment.evaluating.values(), *experiment.bases())}
    needed |= {file.name for file in linked(experiment, needed)}
    # Once there is a result, the best version has its own file beside it.
    if experiment.kept_best is not None and experiment.result is None:
        needed.add(experiment.kept_best.name)
    newest = experiment.kept_newest
    older, experiment.models = experiment.models[:-newest], experiment.models[-newest:]
    experiment.models[:0] = [file for file in older if file.name in needed]
    return tuple(file for file in older if file.name not in needed)


def _whole_before(experiment: Experiment, place: int) -> int:
    """Return the place of the whole version from which the steps to a version begin."""
    last = len(experiment.models) - 1
    while place > 0 and not is_whole(experiment, experiment.version - (last - place)):
        place -= 1
    return place
