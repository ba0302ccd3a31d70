"""The conditions for comparing policies: the speed of each host in each round.

A job has hosts that train, followed by standby hosts. The conditions here are synthetic;
`traced.py` takes them from recorded jobs.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from random import Random
from typing import Protocol

from downpour.base.values import AttemptId, SystemState
from downpour_lab.simulated.machines import Course


class Curve:
    """The work of a host by each moment, in shards; seconds run from a round's beginning.

    We count work in shards of the usual size. A task is a stretch of its host's curve. So if a task
    is interrupted at any point, and the same host continues it, the task ends when it would have
    ended without the interruption.

    Args:
        seconds: the times of the points, ascending, from 0.
        done: the work done by these times, not descending, from 0.
    """

    __slots__ = ("_done", "_rate", "_seconds")

    def __init__(self, seconds: Sequence[float], done: Sequence[float]) -> None:
        pairs = list(zip(seconds, done, strict=True))
        steps = list(pairwise(pairs))
        if not steps or pairs[0] != (0.0, 0.0):
            raise ValueError("a curve has two points at least, and begins with nothing done")
        if any(after[0] <= before[0] or after[1] < before[1] for before, after in steps):
            raise ValueError("a curve's time must pass, and its work not shrink")
        (from_seconds, from_done), (to_seconds, to_done) = steps[-1]
        self._rate = (to_done - from_done) / (to_seconds - from_seconds)
        if self._rate <= 0:
            raise ValueError("a curve must rise at its end")
        self._seconds = list(seconds)
        self._done = list(done)

    def done(self, seconds: float) -> float:
        """Return the work done by a moment."""
        return _read(self._seconds, self._done, self._rate, seconds)

    def when(self, done: float) -> float:
        """Return when this much work is done; if at several moments, return the latest."""
        return _read(self._done, self._seconds, 1.0 / self._rate, done)


@dataclass(frozen=True, slots=True)
class Stretch:
    """A task of some `work` on a curve, begun at some moment; seconds count from there."""

    curve: Curve
    begun_at: float
    work: float

    def share(self, seconds: float) -> float:
        """Return the share of the task that is done after some seconds, in 0..1."""
        so_far = self.curve.done(self.begun_at + seconds) - self.curve.done(self.begun_at)
        return min(1.0, so_far / self.work)

    def when(self, share: float) -> float:
        """Return the seconds after which this share of the task is done."""
        return self.curve.when(self.curve.done(self.begun_at) + share * self.work) - self.begun_at


def _read(xs: list[float], ys: list[float], rate: float, x: float) -> float:
    """Return y at x on the line through points, which continues at a rate after the last one."""
    after = bisect_right(xs, x)
    if after == len(xs):
        return ys[-1] + (x - xs[-1]) * rate
    before = after - 1
    share = (x - xs[before]) / (xs[after] - xs[before])
    return ys[before] + share * (ys[after] - ys[before])


SAMPLES = 3200
"""The number of samples in a shard of the usual size."""

_NOISE = 0.05
_SLOWER = 4.0
_SPELL_ROUNDS = 10
_FLOOR = 0.75
_SHARDS_DRAWN = 6
_CALM = SystemState(cpu_others=0.1, load_average=0.2, memory_used=0.4, io_wait=0.02)
_BUSY = SystemState(cpu_others=0.9, load_average=4.0, memory_used=0.4, io_wait=0.02)


class Conditions(Protocol):
    """A job's hosts in each of its rounds, independent of the policy.

    `hosts` of them train; the others stand by. `task_seconds` is the median time of a shard,
    `samples` its size.
    """

    @property
    def name(self) -> str: ...  # noqa: D102 - named by its class
    @property
    def scenario(self) -> str: ...  # noqa: D102
    @property
    def rounds(self) -> int: ...  # noqa: D102
    @property
    def hosts(self) -> int: ...  # noqa: D102
    @property
    def samples(self) -> int: ...  # noqa: D102
    @property
    def task_seconds(self) -> float: ...  # noqa: D102

    def curve(self, number: int, host: int) -> Curve:
        """Return the work that a host would do in a round if it always trained."""
        ...

    def state(self, number: int, host: int, seconds: float) -> SystemState:
        """Return a host's state, some seconds after the beginning of a round."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Synthetic:
    """Conditions that follow from a seed."""

    scenario: str
    seed: int = 0
    rounds: int = 100
    hosts: int = 16
    samples: int = SAMPLES
    task_seconds: float = 10.0

    @property
    def name(self) -> str:
        """What to call the job."""
        return f"{self.scenario}, seed {self.seed}"

    def state(self, number: int, host: int, seconds: float) -> SystemState:  # noqa: ARG002
        """Return a host's state: it runs nothing else."""
        return _CALM


@dataclass(frozen=True, slots=True, kw_only=True)
class OneStraggler(Synthetic):
    """One host drops to a quarter of its speed during a round; every ten rounds, another one does.

    `from_share` says at which share of a round it slows down. If that is 0, the same host is slow
    in the whole job. The speeds of the others vary by five percent.
    """

    from_share: float
    scenario: str = "one-straggler"

    def straggler(self, number: int) -> int:
        """Return the host that is slow in a round."""
        spell = number // _SPELL_ROUNDS if self.from_share else 0
        return Random(f"straggler {self.seed} {spell}").randrange(self.hosts)

    def curve(self, number: int, host: int) -> Curve:
        """Return the work that a host would do in a round."""
        noise = Random(f"{self.seed} {number} {host}").lognormvariate(0.0, _NOISE)
        usual = self.task_seconds * noise
        if host != self.straggler(number):
            return Curve((0.0, usual), (0.0, 1.0))
        slow_at = self.from_share * usual
        slowly = slow_at + usual * _SLOWER, self.from_share + 1.0
        if not slow_at:
            return Curve((0.0, slowly[0]), (0.0, slowly[1]))
        return Curve((0.0, slow_at, slowly[0]), (0.0, self.from_share, slowly[1]))

    def state(self, number: int, host: int, seconds: float) -> SystemState:
        """Return a host's state: busy with other work while it is slow."""
        slow_at = self.from_share * self.task_seconds
        return _BUSY if host == self.straggler(number) and seconds >= slow_at else _CALM


@dataclass(frozen=True, slots=True, kw_only=True)
class Memoryless(Synthetic):
    """Hosts whose tasks take random times, independent of the host and of its past.

    This holds if every task runs on its own machine, as functions in a cloud do. A shard takes
    three quarters of the usual time, plus an exponential tail whose mean is the last quarter.
    """

    scenario: str = "memoryless"

    def curve(self, number: int, host: int) -> Curve:
        """Return the work that a host would do in a round, drawing the shards one by one."""
        draw = Random(f"memoryless {self.seed} {number} {host}")
        seconds, done = [0.0], [0.0]
        for shard in range(_SHARDS_DRAWN):
            tail = draw.expovariate(1.0 / (1.0 - _FLOOR))
            seconds.append(seconds[-1] + self.task_seconds * (_FLOOR + tail))
            done.append(shard + 1.0)
        return Curve(seconds, done)


@dataclass(frozen=True, slots=True, kw_only=True)
class Unequal(Synthetic):
    """Machines with constant `speeds`; a machine of speed 1 takes the usual time for a shard.

    All times vary by five percent from round to round.
    """

    speeds: tuple[float, ...]
    hosts: int
    rounds: int = 20
    scenario: str = "unequal"

    def curve(self, number: int, host: int) -> Curve:
        """Return the work that a host would do in a round."""
        noise = Random(f"{self.seed} {number} {host}").lognormvariate(0.0, _NOISE)
        return Curve((0.0, self.task_seconds * noise / self.speeds[host]), (0.0, 1.0))


class GivenMachines:
    """Machines under given conditions; the first of `names` is the first host.

    A round begins when the first worker trains in it. All machines are then in the newest round.
    """

    def __init__(self, conditions: Conditions, names: tuple[str, ...]) -> None:
        self._conditions = conditions
        self._hosts = {name: host for host, name in enumerate(names)}
        self._began_at: dict[int, float] = {}
        self._newest = 0

    def course(self, machine: str, attempt: AttemptId, at_seconds: float, work: float) -> Course:
        """Return the course of a training that begins now."""
        number = attempt.round
        began_at = self._began_at.setdefault(number, at_seconds)
        self._newest = max(self._newest, number)
        curve = self._conditions.curve(number, self._hosts[machine])
        return Stretch(curve, at_seconds - began_at, work)

    def state(self, machine: str, at_seconds: float) -> SystemState:
        """Return the machine's state, which a heartbeat reports now."""
        since = at_seconds - self._began_at.get(self._newest, at_seconds)
        return self._conditions.state(self._newest, self._hosts[machine], since)
