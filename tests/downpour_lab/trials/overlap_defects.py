"""Managers with one defect each that only rounds which overlap can have."""

from __future__ import annotations

from downpour.base.values import PublishedFile
from downpour.core.scheduler.experiment import Experiment
from downpour.core.scheduler.round import Round, TaskKey
from tests.downpour_lab.trials.async_defects import Patched


def _newest(one: Experiment, _current: Round) -> int:
    return one.version


def _last_applied(one: Experiment, _current: Round, shard: int) -> tuple[PublishedFile | None, ...]:
    return one.optimizer_states.get(shard), one.steps.get(shard)


def _leave(one: Experiment, key: TaskKey) -> None:
    del one.arrived[key]


class BeginsFromTheNewest(Patched):
    """Has a task begin from the newest version, whichever that is when it is assigned."""

    instead = {"_begins_from": _newest}  # noqa: RUF012


class GoesOnFromWhatCounts(Patched):
    """Has a shard go on from its last update that is part of a version."""

    instead = {"handed_on": _last_applied}  # noqa: RUF012


class GoesOnFromWhatWasRefused(Patched):
    """Offers a shard's next task although the update is gone that it begins from."""

    instead = {"leave": _leave}  # noqa: RUF012
