"""Managers with one defect each that only rounds which overlap can have."""

from __future__ import annotations

from downpour.base.values import PublishedFile
from downpour.core.scheduler import Scheduler
from downpour.core.scheduler.experiment import Experiment
from downpour.core.scheduler.round import Round, TaskKey
from downpour_lab.simulated.manager import SimulatedManager
from tests.downpour_lab.trials.async_defects import Patched


def _newest(one: Experiment, _current: Round) -> int:
    return one.version


def _last_applied(one: Experiment, _current: Round, shard: int) -> tuple[PublishedFile | None, ...]:
    return one.optimizer_states.get(shard), one.steps.get(shard)


def _leave(one: Experiment, key: TaskKey) -> None:
    del one.arrived[key]


class _BeginsFromTheNewest(Patched):
    instead = {"_begins_from": _newest}  # noqa: RUF012


class BeginsFromTheNewest(SimulatedManager):
    """Has a task begin from the newest version, whichever that is when it is assigned."""

    def make_core(self) -> Scheduler:
        """Make the core that does so."""
        return _BeginsFromTheNewest()


class _GoesOnFromWhatCounts(Patched):
    instead = {"handed_on": _last_applied}  # noqa: RUF012


class GoesOnFromWhatCounts(SimulatedManager):
    """Has a shard go on from its last update that is part of a version."""

    def make_core(self) -> Scheduler:
        """Make the core that does so."""
        return _GoesOnFromWhatCounts()


class _GoesOnFromWhatWasRefused(Patched):
    instead = {"leave": _leave}  # noqa: RUF012


class GoesOnFromWhatWasRefused(SimulatedManager):
    """Offers a shard's next task although the update is gone that it begins from."""

    def make_core(self) -> Scheduler:
        """Make the core that does so."""
        return _GoesOnFromWhatWasRefused()
