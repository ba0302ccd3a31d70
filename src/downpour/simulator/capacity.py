"""Estimates how many rounds an hour a cluster trains: the simulated processes, without faults."""

from __future__ import annotations

import gc
from collections.abc import Callable
from dataclasses import dataclass, replace
from math import ceil

from downpour.scheduler import events as on
from downpour.scheduler import facts
from downpour.simulator.checks import InvariantCheck
from downpour.simulator.cluster import Cluster
from downpour.simulator.environment import Observation, Observer, Timings
from downpour.simulator.plan import Plan
from downpour.spec import ResolvedSpec

_STEPS_BETWEEN_LOOKS = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """The work of a cluster whose capacity is estimated."""

    workers: int
    shards: int
    rounds: int
    timings: Timings
    seed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class CapacityEstimate:
    """How long each round takes, from one model version to the next; virtual seconds.

    `lost` counts workers that the manager took for lost although they were healthy.
    """

    round_seconds: tuple[float, ...]
    seconds: float
    events: int
    steps: int
    lost: int

    def busy(self, event_seconds: float) -> float:
        """Return the share of the time that the manager spends on events, at a cost for each."""
        return self.events * event_seconds / self.seconds

    @property
    def mean_seconds(self) -> float:
        """The mean time of a round."""
        return sum(self.round_seconds) / len(self.round_seconds)

    @property
    def rounds_per_hour(self) -> float:
        """The rounds in an hour."""
        return 3600.0 / self.mean_seconds

    def quantile(self, share: float) -> float:
        """Return the seconds that this share of the rounds do not exceed."""
        ordered = sorted(self.round_seconds)
        return ordered[max(0, ceil(share * len(ordered)) - 1)]


def estimate_capacity(load: Load, show: Callable[[int], None] = lambda _: None) -> CapacityEstimate:
    """Simulate a cluster until its rounds are done; `show` is called with their number so far."""
    # Deadlines would cost one more step for each call, and none is missed without faults.
    timings = replace(load.timings, deadline_seconds=None)
    spec = ResolvedSpec(
        shards=load.shards, epochs=load.rounds, retries=1000, evaluate_every=1, policy="wait"
    )
    plan = Plan(
        seed=load.seed,
        specs=(("planned", spec),),
        managers=("manager",),
        workers=tuple(f"worker-{n + 1}" for n in range(load.workers)),
        timings=timings,
        faults=(),
    )
    pace = _Pace()
    cluster = Cluster(plan, lambda _: pace, lambda _: None)
    cluster.begin()
    gc.disable()  # because the collector would visit all messages under way, and free none of them
    try:
        _run(cluster, pace, show)
    finally:
        gc.enable()
    return CapacityEstimate(
        round_seconds=tuple(pace.round_seconds),
        seconds=cluster.clock.now_seconds,
        events=pace.events,
        steps=cluster.clock.steps,
        lost=pace.lost,
    )


def _run(cluster: Cluster, pace: _Pace, show: Callable[[int], None]) -> None:
    while not pace.ended:
        for _ in range(_STEPS_BETWEEN_LOOKS):
            if not cluster.clock.step() or pace.ended:
                break
        show(len(pace.round_seconds))


class _Pace(Observer):
    """Measures rounds, and checks the invariants."""

    def __init__(self) -> None:
        self.round_seconds: list[float] = []
        self.events = 0
        self.lost = 0
        self.ended = False
        self._check = InvariantCheck()
        self._began_at = 0.0

    def handled(self, step: Observation) -> None:
        """Count the event, and check the state."""
        self.events += 1
        self._check.handled(step)

    def acting(self, step: Observation) -> None:
        """Measure how long rounds take."""
        event = step.event
        if isinstance(event, on.Prepared):
            self._began_at = event.at_seconds
        elif isinstance(event, on.Aggregated):
            self.round_seconds.append(event.at_seconds - self._began_at)
            self._began_at = event.at_seconds
        for fact in step.output.facts:
            self.lost += isinstance(fact, facts.Dismissed)
            self.ended = self.ended or isinstance(fact, facts.Concluded)
