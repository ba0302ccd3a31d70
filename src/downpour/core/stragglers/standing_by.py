"""When a slow worker should stand by, because the round would end no sooner with its help.

A shard on a slow worker moves to a fast worker as soon as one is idle. The fast worker waits for
the slow worker's next step, and for the move. If the slow worker trains less by then than this wait
costs, the round ends sooner if the shard waits for a fast worker. Without a measured speed, as in
the first round, a worker gets a shard like any other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import inf

from downpour.core.stragglers.base import Assignment, PendingTask, RoundView
from downpour.core.stragglers.outlook import Outlook

# Slow workers have less than this share of the fastest worker's speed. We assume that a faster
# worker is useful: two of its shards take no longer than a shard that waits for its turn.
SLOW = 0.5


@dataclass(frozen=True)
class Prospects:
    """How the round continues without a slow worker.

    `free_in` has the seconds until each fast worker is free, and `waiting` shards wait for one. A
    move takes `move_seconds`; speeds are in samples per second.
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

        The loss is a share of the seconds until the shard would end without that worker. If the
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
        # No other shard waits, so the busy workers will exchange their shards and end together. No
        # shard ends sooner than a fast worker would train it.
        level = (quick + sum(self.free_in)) / (len(self.free_in) + share)
        end = max(without, *self.free_in)
        return (max(level, quick, *self.free_in) + cost) / end - 1


def waiting_shards(view: RoundView) -> int:
    """Return how many shards have no worker; `pending` is empty while no worker is idle."""
    return view.shards - len({task.shard for task in view.running}) - len(view.published)


def without_hindrances(view: RoundView, assignments: Sequence[Assignment]) -> list[Assignment]:
    """Leave out assignments to slow workers that would make the round end no sooner."""
    hindering = hindrances(view, assignments)
    return [choice for choice in assignments if choice.worker not in hindering]


def hindrances(view: RoundView, assignments: Sequence[Assignment]) -> dict[str, float]:
    """Return the slow workers that make the round end no sooner, with the share of time lost.

    A shard stays assigned if it failed, was handed over, or may train on no fast worker.
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
    """Whether a shard may wait for a fast worker."""
    fresh = not task.failed_on and task.meant_for is None
    return fresh and any(view.may_train(name, task.shard) for name in fast)
