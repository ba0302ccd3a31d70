"""When a slow worker had better stand by: where the round would end no sooner with its help.

A shard on a slow worker goes on elsewhere as soon as a fast one is idle. That one waits for the
slow worker's next step, and for the move. If the slow worker does less until then than this costs,
the round ends sooner if the shard waits for a fast worker. Without a measured speed, as in the
first round, a worker gets a shard like any other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import inf

from downpour.core.stragglers.base import Assignment, PendingTask, RoundView
from downpour.core.stragglers.outlook import Outlook

# Of the fastest worker's speed. We assume that a faster worker is useful: two of its shards take no
# longer than a shard that waits for its turn.
SLOW = 0.5


@dataclass(frozen=True)
class Prospects:
    """How the round goes on without a slow worker.

    `free_in` are the seconds until each of the fast workers is free, and `waiting` is how many
    shards wait for one. A move takes `move_seconds`; speeds are samples a second.
    """

    fastest: float
    free_in: tuple[float, ...]
    waiting: int
    move_seconds: float

    @cached_property
    def soon(self) -> float:
        """The seconds until the first fast worker is free."""
        return min(self.free_in)

    def loss(self, samples: int, speed: float, step_seconds: float) -> float:
        """Return how much later the round ends if a slow worker begins a shard now.

        It is a share of the seconds until the shard would be done without that worker; where the
        slow worker helps, it is below zero.
        """
        alone = samples / speed if speed > 0 else inf
        quick = samples / self.fastest
        without = self.soon + quick
        if alone <= without:
            return alone / without - 1
        cost = step_seconds + self.move_seconds
        share = quick / alone
        if self.waiting > 1:
            return (cost - self.soon * share) / without
        # It is the last one: the busy will exchange their shards, so that all end together. None
        # ends sooner than a fast worker would train it.
        level = (quick + sum(self.free_in)) / (len(self.free_in) + share)
        end = max(without, *self.free_in)
        return (max(level, quick, *self.free_in) + cost) / end - 1


def waiting_shards(view: RoundView) -> int:
    """Return how many shards no worker has; `pending` has none while no worker is idle."""
    return view.shards - len({task.shard for task in view.running}) - len(view.published)


def without_hindrances(view: RoundView, assignments: Sequence[Assignment]) -> list[Assignment]:
    """Leave out the assignments to slow workers with which the round would end no sooner."""
    hindering = hindrances(view, assignments)
    return [choice for choice in assignments if choice.worker not in hindering]


def hindrances(view: RoundView, assignments: Sequence[Assignment]) -> dict[str, float]:
    """Return the slow workers with which the round would end no sooner, and the share of time lost.

    A shard that failed, was handed over, or lacks a fast worker that may train it stays assigned.
    """
    outlook = Outlook(view)
    speeds = {name: speed for name in view.speeds if (speed := outlook.speed(name))}
    fastest = max((speed for speed in speeds.values() if speed < inf), default=0.0)
    fast = {name for name, speed in speeds.items() if speed >= SLOW * fastest}
    slow = [choice for choice in assignments if choice.worker in speeds.keys() - fast]
    if not slow:
        return {}
    offers = {task.shard: task for task in view.pending}
    busy = [outlook.left_seconds(task) for task in view.running if task.worker in fast]
    busy += [
        outlook.seconds_for(offers[choice.shard].samples, choice.worker)
        for choice in assignments
        if choice.worker in fast
    ]
    free_in = tuple(seconds for seconds in busy if seconds is not None and seconds < inf)
    if not free_in:
        return {}
    waiting = waiting_shards(view) - len(assignments) + len(slow)
    prospects = Prospects(fastest, free_in, waiting, outlook.move_seconds)
    losses = {
        choice.worker: prospects.loss(
            offers[choice.shard].samples,
            speeds[choice.worker],
            outlook.step_seconds(choice.worker),
        )
        for choice in slow
        if _may_wait(view, offers[choice.shard], fast)
    }
    return {name: loss for name, loss in losses.items() if loss >= 0}


def _may_wait(view: RoundView, task: PendingTask, fast: set[str]) -> bool:
    """Whether a shard may be left for a fast worker."""
    fresh = not task.failed_on and task.meant_for is None
    return fresh and any(view.may_train(name, task.shard) for name in fast)
