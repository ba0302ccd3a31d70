"""Managers with one defect each that some modes can have: asynchronous, overlapping, in steps."""

import math
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any
from unittest.mock import patch

from downpour.base.values import AttemptId, PublishedFile
from downpour.core.scheduler import Checkpoint, Journaled, Output, Scheduler, queue
from downpour.core.scheduler import events as on
from downpour.core.scheduler import outputs as out
from downpour.core.scheduler.experiment import Experiment
from downpour.core.scheduler.round import Round, TaskKey
from tests.downpour_lab.trials.defects import AsksOtherwise, DoesOtherwise

_assign, _due = Experiment.assign, Experiment.due


def _assign_anew(
    one: Experiment, current: Round, shard: int, worker: str, at_seconds: float, share: float = 1.0
) -> AttemptId:
    current.tasks[shard].base = None
    return _assign(one, current, shard, worker, at_seconds, share)


def _has_room(one: Experiment) -> bool:
    left = one.rounds_done + len(one.rounds) < one.spec.rounds
    return not one.rounds or (left and one.rounds[-1].applied > 0)


def _assign_the_centre(
    one: Experiment, current: Round, shard: int, worker: str, at_seconds: float, share: float = 1.0
) -> AttemptId:
    own, one.own = one.own, {}
    attempt = _assign(one, current, shard, worker, at_seconds, share)
    one.own = own
    return attempt


def _assign_another_share(
    one: Experiment, current: Round, shard: int, worker: str, at_seconds: float, share: float = 1.0
) -> AttemptId:
    current.tasks[shard].shorten(share)
    return _assign(one, current, shard, worker, at_seconds, share)


class Patched(Scheduler):
    """A core with some of `Experiment`'s methods replaced by `instead`, also when it replays."""

    instead: Mapping[str, Any] = {}

    def handle(self, event: on.Event) -> Output:
        """Handle an event with the defect."""
        with patch.multiple(Experiment, **self.instead):
            return super().handle(event)

    def replay(self, at_seconds: float, entry: Journaled) -> None:
        """Replay an entry with the defect."""
        with patch.multiple(Experiment, **self.instead):
            super().replay(at_seconds, entry)


class ForgetsTheBase(Patched):
    """Has each attempt at a task begin from the newest version."""

    instead = {"assign": _assign_anew}  # noqa: RUF012


class ForgetsWithACheckpoint(Scheduler):
    """Forgets which versions the open tasks began from, where replay begins with a checkpoint."""

    def replay(self, at_seconds: float, entry: Journaled) -> None:
        """Take in a checkpoint without the bases of its tasks."""
        if isinstance(entry, Checkpoint):
            tasks = [[replace(task, base=None) for task in tasks] for tasks in entry.tasks]
            entry = replace(entry, tasks=tasks)
        super().replay(at_seconds, entry)


class DecidesSharesAnew(Patched):
    """Has each attempt at a task train as many steps as its own worker's speed allows."""

    instead = {"assign": _assign_another_share}  # noqa: RUF012


class BeginsFromTheCentre(Patched):
    """Has a shard begin from the model that should go on from its own parameters."""

    instead = {"assign": _assign_the_centre}  # noqa: RUF012


class IgnoresTheBound(Patched):
    """Lets shards be ahead of the slowest by any number of rounds."""

    instead = {"has_room": property(_has_room)}  # noqa: RUF012


class CountsStaleAsFresh(Patched):
    """Weighs each update as if it had begun from the newest version."""

    instead = {"staleness": lambda _one, _task: 0}  # noqa: RUF012


def _due_at_once(one: Experiment, _now_seconds: float) -> tuple[TaskKey, ...]:
    return _due(one, math.inf)


class HasNoGrace(Patched):
    """Makes a version as soon as the quorum is there."""

    instead = {"due": _due_at_once}  # noqa: RUF012


class EndsRoundsEarly(Patched):
    """Ends a round of k-sync with its first update."""

    instead = {"has_enough": lambda one, current: bool(one.mode.enough and current.published)}  # noqa: RUF012


class LosesPushes(Patched):
    """Forgets the updates that wait where another one comes."""

    instead = {"arrive": lambda one, _attempt, _at: one.arrived.clear()}  # noqa: RUF012


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


class NamesTooFew(AsksOtherwise):
    """Leaves the whole version out of those that lead to a task's."""

    def instead(self, command: out.Command) -> out.Command:
        if isinstance(command, out.Assign):
            return replace(command, leading=command.leading[1:])
        return command


class TakesStepsForWhole(AsksOtherwise):
    """Publishes a step where a whole version is due, on which later ones are to rest."""

    def instead(self, command: out.Command) -> out.Command:
        return replace(command, whole=False) if isinstance(command, out.Aggregate) else command


class KeepsNothingLinked(DoesOtherwise):
    """Keeps no version for the sake of those after it."""

    module, name = queue, "linked"

    def instead(self, _: Experiment, needed: Collection[str]) -> tuple[PublishedFile, ...]:
        del needed
        return ()
