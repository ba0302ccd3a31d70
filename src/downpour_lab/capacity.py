"""Estimates how many rounds per hour a cluster trains in a mode, with simulated processes.

No faults strike, unless the caller asks for workers that die now and then.
"""

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import ceil
from random import Random
from typing import TypeVar

from downpour.base.values import AttemptId
from downpour.core.scheduler import events as on
from downpour.core.scheduler import outputs as out
from downpour_lab.simulated.environment import Observation, Observer, Timings
from downpour_lab.trials.checks import InvariantCheck
from downpour_lab.trials.faults import Fault, FaultKind
from downpour_lab.trials.plan import RETRIES_ENOUGH, Plan, plain_spec
from downpour_lab.trials.promises import Comparisons
from downpour_lab.trials.striking import Cluster

_Number = TypeVar("_Number", int, float)
_NAME = "planned"
_SECONDS_DEAD = 60.0
_SLACK = 10.0
"""We plan deaths for this many times as long as the tasks would take without them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """The work of a cluster whose capacity we estimate.

    `deaths_an_hour` counts the deaths of all workers together. A dead worker is back after a
    minute.
    """

    workers: int
    shards: int
    rounds: int
    timings: Timings
    seed: int = 0
    mode: str = "sync"
    policy: str = "wait"
    deaths_an_hour: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class CapacityEstimate:
    """How long each round takes, from the end of the previous round; virtual seconds.

    `staleness` has one item for each update in a version: how many versions the manager made since
    the one that the update began from. `training` is the share of the workers' time in which they
    held a task, however the task ended, `manager_busy` the share of the time that the manager spent
    on events. `lost` counts workers that the manager believed lost; if no worker dies, all of these
    were healthy.
    """

    round_seconds: tuple[float, ...]
    events: int
    lost: int
    staleness: tuple[int, ...]
    training: float
    manager_busy: float

    @property
    def mean_seconds(self) -> float:
        """The mean time of a round."""
        return sum(self.round_seconds) / len(self.round_seconds)

    @property
    def rounds_per_hour(self) -> float:
        """The rounds in an hour."""
        return 3600.0 / self.mean_seconds

    @property
    def updates_per_hour(self) -> float:
        """The updates that reach a version in an hour."""
        return 3600.0 * len(self.staleness) / sum(self.round_seconds)


def quantile(values: Sequence[_Number], share: float) -> _Number:
    """Return the value that this share of the values don't exceed."""
    return sorted(values)[max(0, ceil(share * len(values)) - 1)]


def estimate_capacity(load: Load, show: Callable[[int], None] = lambda _: None) -> CapacityEstimate:
    """Simulate a cluster until its rounds are done; call `show` with their number so far."""
    plan = _plan(load)
    pace = _Pace()
    cluster = Cluster(plan, lambda _: pace, lambda _: None)
    cluster.run(lambda: pace.ended, lambda: show(len(pace.round_seconds)))
    return CapacityEstimate(
        round_seconds=tuple(pace.round_seconds),
        events=pace.events,
        lost=pace.lost,
        staleness=tuple(pace.staleness),
        training=pace.training_seconds / (load.workers * cluster.clock.now_seconds),
        manager_busy=pace.events * load.timings.event_seconds / cluster.clock.now_seconds,
    )


def _plan(load: Load) -> Plan:
    spec = plain_spec(
        shards=load.shards,
        epochs=load.rounds,
        retries=RETRIES_ENOUGH,
        mode=load.mode,
        policy=load.policy,
    )
    workers = tuple(f"worker-{n + 1}" for n in range(load.workers))
    timings = load.timings
    if not load.deaths_an_hour:
        # Deadlines would cost one more step per call, and without faults no call misses one.
        timings = replace(timings, deadline_seconds=None)
    return Plan(
        seed=load.seed,
        specs=((_NAME, spec),),
        managers=("manager",),
        workers=workers,
        timings=timings,
        faults=tuple(_deaths(load, workers)),
    )


def _deaths(load: Load, workers: Sequence[str]) -> Iterator[Fault]:
    """Yield random deaths of workers; on average, `load.deaths_an_hour` of them an hour."""
    if not load.deaths_an_hour:
        return
    random, at_seconds = Random(load.seed), 0.0
    tasks = load.rounds * ceil(load.shards / load.workers)
    for number in itertools.count(1):
        at_seconds += random.expovariate(load.deaths_an_hour / 3600.0)
        if at_seconds > _SLACK * tasks * load.timings.task_seconds:
            return
        yield Fault(
            number=number,
            at_seconds=at_seconds,
            kind=FaultKind.WORKER_DIES,
            target=random.choice(workers),
            seconds=_SECONDS_DEAD,
        )


class _Pace(Observer):
    """Measures rounds and updates, and checks the invariants."""

    def __init__(self) -> None:
        self.round_seconds: list[float] = []
        self.staleness: list[int] = []
        self.training_seconds = 0.0
        self.events = 0
        self.lost = 0
        self.ended = False
        self._check = InvariantCheck(Comparisons())
        self._began_at = 0.0
        self._assigned_at: dict[AttemptId, float] = {}

    def handled(self, step: Observation) -> None:
        self.events += 1
        self._check.handled(step)

    def acting(self, step: Observation) -> None:
        event = step.event
        if isinstance(event, on.Prepared):
            self._began_at = event.at_seconds
        elif isinstance(event, on.Aggregated):
            self._ended(step.core.state.experiments[_NAME].rounds_done, event.at_seconds)
        for command in step.output.commands:
            if isinstance(command, out.Aggregate):
                self.staleness += [push.staleness for push in command.pushes]
        for fact in step.output.facts:
            self._note(fact, event.at_seconds)

    def _ended(self, rounds: int, at_seconds: float) -> None:
        """Note rounds that are over; if several end at once, all but the first took no time."""
        for _ in range(rounds - len(self.round_seconds)):
            self.round_seconds.append(at_seconds - self._began_at)
            self._began_at = at_seconds

    def _note(self, fact: out.Fact, at_seconds: float) -> None:
        match fact:
            case out.Assigned():
                self._assigned_at[fact.attempt] = at_seconds
            case out.Accepted() | out.GivenUp():
                # An attempt that was handed over and then accepted is in two facts.
                self.training_seconds += at_seconds - self._assigned_at.pop(
                    fact.attempt, at_seconds
                )
            case out.Dismissed():
                self.lost += 1
            case out.Concluded():
                self.ended = True
