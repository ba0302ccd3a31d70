"""The conditions for comparing policies: the speed of each host in each round.

A job has hosts that train, followed by standby hosts. The conditions here are synthetic;
`traced.py` takes them from recorded jobs.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Protocol

from downpour.base.values import SystemState
from downpour.virtual.policylab.curves import Curve

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

    `hosts` of them train, and `standbys` more are available. `task_seconds` is the median time of a
    shard, `samples` its size.
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
    def standbys(self) -> int: ...  # noqa: D102
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
class OneStraggler:
    """One host drops to a quarter of its speed during a round; every ten rounds, another one does.

    `from_share` says at which share of a round it slows down. If that is 0, the same host is slow
    in the whole job. The speeds of the others vary by five percent.
    """

    from_share: float
    called: str = "one-straggler"
    seed: int = 0
    rounds: int = 100
    hosts: int = 16
    standbys: int = 1
    samples: int = SAMPLES
    task_seconds: float = 10.0

    @property
    def name(self) -> str:
        """What to call the job."""
        return f"{self.scenario}, seed {self.seed}"

    @property
    def scenario(self) -> str:
        """The kind of conditions."""
        return self.called

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
class Memoryless:
    """Hosts whose tasks take random times, independent of the host and of its past.

    This holds if every task runs on its own machine, as functions in a cloud do. A shard takes
    three quarters of the usual time, plus an exponential tail whose mean is the last quarter.
    """

    seed: int = 0
    rounds: int = 100
    hosts: int = 16
    standbys: int = 1
    samples: int = SAMPLES
    task_seconds: float = 10.0

    @property
    def name(self) -> str:
        """What to call the job."""
        return f"{self.scenario}, seed {self.seed}"

    @property
    def scenario(self) -> str:
        """The kind of conditions."""
        return "memoryless"

    def curve(self, number: int, host: int) -> Curve:
        """Return the work that a host would do in a round, drawing the shards one by one."""
        draw = Random(f"memoryless {self.seed} {number} {host}")
        seconds, done = [0.0], [0.0]
        for shard in range(_SHARDS_DRAWN):
            tail = draw.expovariate(1.0 / (1.0 - _FLOOR))
            seconds.append(seconds[-1] + self.task_seconds * (_FLOOR + tail))
            done.append(shard + 1.0)
        return Curve(seconds, done)

    def state(self, number: int, host: int, seconds: float) -> SystemState:  # noqa: ARG002
        """Return a host's state, which says nothing about its next task."""
        return _CALM


@dataclass(frozen=True, slots=True, kw_only=True)
class Unequal:
    """Machines with constant `speeds`; a machine of speed 1 takes the usual time for a shard.

    All times vary by five percent from round to round.
    """

    speeds: tuple[float, ...]
    hosts: int
    seed: int = 0
    rounds: int = 20
    samples: int = SAMPLES
    task_seconds: float = 10.0
    scenario: str = "unequal"

    @property
    def name(self) -> str:
        """What to call the job."""
        return f"{self.scenario}, seed {self.seed}"

    @property
    def standbys(self) -> int:
        """The machines that remain after one for each shard."""
        return max(0, len(self.speeds) - self.hosts)

    def curve(self, number: int, host: int) -> Curve:
        """Return the work that a host would do in a round."""
        noise = Random(f"{self.seed} {number} {host}").lognormvariate(0.0, _NOISE)
        return Curve((0.0, self.task_seconds * noise / self.speeds[host]), (0.0, 1.0))

    def state(self, number: int, host: int, seconds: float) -> SystemState:  # noqa: ARG002
        """Return a host's state: it runs nothing else."""
        return _CALM
