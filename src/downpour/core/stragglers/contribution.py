"""A worker's contribution: a round's predicted seconds with all workers, and without this one.

`Lineup.plan` predicts both. It goes through a round as `handoff` does. The biggest shard goes first
to the worker that is free first, or to the fastest of several free workers. `pairing.py` says which
slow workers get none. Once no shard waits, the plan balances the rest of the work: shards go to
faster idle workers and, if none is idle, busy workers exchange theirs. The plan uses the
scheduler's own speeds.

The prediction leaves out loading, publishing and chance. `docs/how-to/stragglers.md` compares it
with rounds in the simulator.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from heapq import heappop, heappush
from math import inf
from operator import attrgetter
from typing import Self

from downpour.core.stragglers.base import RoundView, Saving
from downpour.core.stragglers.outlook import Outlook
from downpour.core.stragglers.pairing import SLOW, Prospects

# Each exchange waits for a step and a move. We simulated two, four and eight workers next to a slow
# one. In each case, a round's exchanges took as long as three in a row.
_EXCHANGES = 3
_NOTHING = 1e-9
_SPEED = attrgetter("speed")


@dataclass(frozen=True, slots=True)
class _Member:
    """A worker: its speed in samples per second, and how long one step takes."""

    name: str
    speed: float
    step_seconds: float


@dataclass(frozen=True, slots=True)
class _PlannedRound:
    """The seconds of a round, and the workers that begin a shard in it."""

    seconds: float
    begin: frozenset[str]


@dataclass(frozen=True)
class Lineup:
    """The workers of a round, and the sizes of its shards in samples.

    The `standbys` slowest workers stay free. A move takes `move_seconds`.
    """

    sizes: Sequence[int]
    members: Sequence[_Member]
    standbys: int
    move_seconds: float

    @classmethod
    def of(cls, view: RoundView, sizes: Sequence[int]) -> Self | None:
        """Return the lineup of a view; None if it has only one worker, or too little is known.

        It is also None if shards have their own needs: a plan gives any shard to any worker.
        """
        if len(view.workers) < 2 or not sizes or view.barred:
            return None
        measured = {name for name, speed in view.speeds.items() if not speed.at_most}
        if any(task.worker not in measured for task in view.running):
            return None
        outlook = Outlook(view)
        members = [
            _Member(name, speed, outlook.step_seconds(name))
            for name in view.workers
            if (speed := outlook.speed(name)) and speed < inf
        ]
        if len(members) < len(view.workers):
            return None
        return cls(sizes, members, view.standbys, outlook.move_seconds)

    def plan(self, must: str = "") -> _PlannedRound:
        """Predict the round; the worker named by `must` begins a shard instead of standing by."""
        order = self._fastest_first
        free = [(0.0, place) for place in range(max(len(order) - self.standbys, 1))]
        waiting = sorted(self.sizes)
        ends: dict[_Member, float] = {}
        now = 0.0
        while waiting and free:
            at, place = heappop(free)
            member = order[place]
            if member.name != must and self._hinders(member, at, waiting, ends):
                continue
            now = at
            ends[member] = at + waiting.pop() / member.speed
            heappush(free, (ends[member], place))
        seconds = now + self._levelled_seconds({one: end - now for one, end in ends.items()})
        return _PlannedRound(seconds, frozenset(member.name for member in ends))

    @cached_property
    def _fastest_first(self) -> list[_Member]:
        return sorted(self.members, key=_SPEED, reverse=True)

    def _hinders(
        self, member: _Member, at: float, waiting: Sequence[int], ends: dict[_Member, float]
    ) -> bool:
        """Whether the round ends no sooner if a worker begins the next shard."""
        fastest = self._fastest_first[0].speed
        fast = SLOW * fastest
        if member.speed >= fast:
            return False
        # The fastest worker began first, and no fast worker stops while shards wait.
        free_in = tuple(end - at for one, end in ends.items() if one.speed >= fast)
        prospects = Prospects(fastest, free_in, len(waiting), self.move_seconds)
        return prospects.loss(waiting[-1], member.speed, member.step_seconds) >= 0

    def _levelled_seconds(self, left: dict[_Member, float]) -> float:
        """Return the seconds until the end of all training, once no shard waits for a worker.

        `left` has the seconds that each busy worker needs for the rest of its shard.
        """
        ends = {member: seconds for member, seconds in left.items() if seconds > 0}
        work = {member: seconds * member.speed for member, seconds in ends.items()}
        level = self._level(work.values())
        idle = [member for member in self._fastest_first if member not in ends]
        exchanges = 0.0
        for member in sorted((one for one in ends if ends[one] > level + _NOTHING), key=_SPEED):
            cost = member.step_seconds + self.move_seconds
            if idle and idle[0].speed > member.speed:
                helper = idle.pop(0)
                ends[member] = work[member] / helper.speed + cost
                work[member] += cost * helper.speed
            else:
                exchanges = max(exchanges, _EXCHANGES * cost)
        alone = max(ends.values(), default=0.0)
        return min(alone, self._level(work.values()) + exchanges) if exchanges else alone

    def _level(self, work: Collection[float]) -> float:
        """Return the seconds that balanced work takes if only one worker trains each shard.

        The k largest remainders take at least as long as the k fastest workers need for them. An
        optimal schedule reaches that bound (Horvath, Lam and Sethi 1977).
        """
        seconds = samples = speeds = 0.0
        for one, member in zip(sorted(work, reverse=True), self._fastest_first, strict=False):
            samples, speeds = samples + one, speeds + member.speed
            seconds = max(seconds, samples / speeds)
        return seconds


def contributions(
    view: RoundView, sizes: Sequence[int], names: Collection[str]
) -> dict[str, Saving]:
    """Return what workers contribute to a round of shards of these sizes.

    A worker has no contribution before we have measured two intervals between its reports. If any
    worker's speed is unknown, or a busy worker's speed is unmeasured, no worker has a contribution.
    """
    lineup = Lineup.of(view, sizes)
    if lineup is None:
        return {}
    whole = lineup.plan()
    measured = {name for name, speed in view.speeds.items() if speed.variance is not None}
    present = {member.name for member in lineup.members}
    told = [name for name in names if name in measured & present]
    return {name: _contribution(lineup, whole, name) for name in told}


def _contribution(lineup: Lineup, whole: _PlannedRound, name: str) -> Saving:
    stands_by = name not in whole.begin
    joined = lineup.plan(must=name) if stands_by else whole
    others = [member for member in lineup.members if member.name != name]
    without = replace(lineup, members=others).plan().seconds
    return Saving(share=1 - joined.seconds / without, stands_by=stands_by)
