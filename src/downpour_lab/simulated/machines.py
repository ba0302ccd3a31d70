"""The workers' machines: their state, and the course of a training that begins at some moment.

In the search for faults, both are random or constant.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Protocol

from downpour.base.values import AttemptId, Forecast, SystemState
from downpour.predictor.features import Features, Request

_IDLE = SystemState(cpu_others=0.0, load_average=0.0, memory_used=0.0, io_wait=0.0)


def labels_of(machine: str) -> tuple[str, str]:
    """Return the labels of a worker's machine: its site (a and b take turns) and its rack."""
    number = int("".join(filter(str.isdigit, machine)) or 0)
    return f"site={'ba'[number % 2]}", f"rack={number % 3}"


class Course(Protocol):
    """How an undisturbed task progresses; seconds count from its beginning."""

    def share(self, seconds: float) -> float:
        """Return the share of the task that is done after some seconds, in 0..1."""
        ...

    def when(self, share: float) -> float:
        """Return the seconds after which this share of the task is done."""
        ...


class Machines(Protocol):
    """The machines of all workers."""

    def course(self, machine: str, attempt: AttemptId, at_seconds: float, work: float) -> Course:
        """Return the course of a training that begins now; `work` is in usual shards."""
        ...

    def state(self, machine: str, at_seconds: float) -> SystemState:
        """Return the machine's state, which a heartbeat reports now."""
        ...


@dataclass(frozen=True, slots=True)
class Steady:
    """A task that trains at a constant speed."""

    seconds: float

    def share(self, seconds: float) -> float:
        """Return the share of the task that is done after some seconds."""
        return min(1.0, seconds / self.seconds) if self.seconds else 1.0

    def when(self, share: float) -> float:
        """Return the seconds after which this share of the task is done."""
        return share * self.seconds


class RandomMachines:
    """Machines that differ in pace, and whose tasks vary around it; both log-normally.

    Args:
        names: the machines.
        task_seconds: the median time of a shard.
        worker_spread: how much machines differ, as the standard deviation of the log times.
        spread: how much the tasks of one machine differ, in the same way.
        random: the generator to draw from.
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
        """Return the course of a training that begins now: a constant speed."""
        return Steady(self._varied(self._paces[machine], self._spread) * work)

    def state(self, machine: str, at_seconds: float) -> SystemState:  # noqa: ARG002
        """Return the state of an idle machine."""
        return _IDLE

    def _varied(self, seconds: float, spread: float) -> float:
        return seconds * self._random.lognormvariate(0.0, spread) if spread else seconds


_SPREAD = 1.0
_TYPICAL_SECONDS = 2.0
_QUANTILES = (0.6, 1.0, 1.5, 2.0)


class Guessing:
    """Predicts anything and learns nothing, drawing numbers from `random`."""

    def __init__(self, random: Random) -> None:
        self._random = random

    def predict(self, worker: str, features: Features) -> Forecast:  # noqa: ARG002
        """Guess how long a task takes, without looking at it."""
        middle = _TYPICAL_SECONDS * self._random.lognormvariate(0.0, _SPREAD)
        return Forecast.of(middle * share for share in _QUANTILES)

    def predict_many(self, requests: Sequence[Request]) -> list[Forecast]:
        """Guess for each task."""
        return [self.predict(*request) for request in requests]

    def observe(self, worker: str, features: Features, seconds: float) -> None:
        """Learn nothing."""
