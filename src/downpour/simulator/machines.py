"""How long a worker takes for a share of a shard that it begins at some moment, and how it is.

In the search for faults that is drawn at random, and nothing else is known of a machine.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Protocol

from downpour.values import AttemptId, SystemState

_IDLE = SystemState(cpu_others=0.0, load_average=0.0, memory_used=0.0, io_wait=0.0)


class Course(Protocol):
    """How a task goes on that nobody disturbs; seconds run from when it was begun."""

    @property
    def seconds(self) -> float:
        """How long it takes."""
        ...

    def share(self, seconds: float) -> float:
        """Return how much of it is done after so long, in 0..1."""
        ...

    def when(self, share: float) -> float:
        """Return after how long so much of it is done."""
        ...


class Machines(Protocol):
    """The machines that workers are on."""

    def course(self, machine: str, attempt: AttemptId, at_seconds: float, work: float) -> Course:
        """Return how training goes on that begins now; `work` is in shards of the usual size."""
        ...

    def state(self, machine: str, at_seconds: float) -> SystemState:
        """Return what its heartbeat tells of a machine now."""
        ...


@dataclass(frozen=True, slots=True)
class Steady:
    """A task that goes on as it has begun."""

    seconds: float

    def share(self, seconds: float) -> float:
        """Return how much of it is done after so long."""
        return min(1.0, seconds / self.seconds) if self.seconds else 1.0

    def when(self, share: float) -> float:
        """Return after how long so much of it is done."""
        return share * self.seconds


class RandomMachines:
    """Machines with a pace of their own, around which their tasks vary, log-normally.

    Args:
        names: the machines.
        task_seconds: what a shard takes, at the median.
        worker_spread: how much machines differ: the deviation of the time's logarithm.
        spread: how much the tasks of one machine do, likewise.
        random: draws.
    """

    def __init__(
        self,
        names: tuple[str, ...],
        task_seconds: float,
        worker_spread: float,
        spread: float,
        random: Random,
    ) -> None:
        self._random = random
        self._spread = spread
        self._paces = {name: self._varied(task_seconds, worker_spread) for name in names}

    def course(
        self,
        machine: str,
        attempt: AttemptId,  # noqa: ARG002 - whatever it is, and whenever
        at_seconds: float,  # noqa: ARG002
        work: float,
    ) -> Course:
        """Return how training goes on that begins now: steadily."""
        return Steady(self._varied(self._paces[machine], self._spread) * work)

    def state(self, machine: str, at_seconds: float) -> SystemState:  # noqa: ARG002
        """Return what its heartbeat tells of a machine: nothing in particular."""
        return _IDLE

    def _varied(self, seconds: float, spread: float) -> float:
        return seconds * self._random.lognormvariate(0.0, spread) if spread else seconds
