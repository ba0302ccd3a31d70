"""How many rounds an hour a cluster would do: the same managers and workers, and no faults."""

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
    """What a cluster is asked to do."""

    workers: int
    shards: int
    rounds: int
    timings: Timings
    seed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class CapacityEstimate:
    """How long rounds take, each from the model before to its own; virtual seconds.

    `lost` counts workers that the manager took for lost although nothing was wrong with them.
    """

    round_seconds: tuple[float, ...]
    seconds: float
    events: int
    steps: int
    lost: int

    def busy(self, event_seconds: float) -> float:
        """Return the share of the time that events take which cost the manager so much each."""
        return self.events * event_seconds / self.seconds

    @property
    def mean_seconds(self) -> float:
        """How long a round takes."""
        return sum(self.round_seconds) / len(self.round_seconds)

    @property
    def rounds_per_hour(self) -> float:
        """How many rounds are done in an hour."""
        return 3600.0 / self.mean_seconds

    def quantile(self, share: float) -> float:
        """Return what so many of the rounds do not take longer than."""
        ordered = sorted(self.round_seconds)
        return ordered[max(0, ceil(share * len(ordered)) - 1)]


def estimate_capacity(load: Load, show: Callable[[int], None] = lambda _: None) -> CapacityEstimate:
    """Let a cluster work until its rounds are done; `show` is told how many are, now and then."""
    # Deadlines would cost one step more for each call, and none is missed without faults.
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
    gc.disable()  # many messages are under way, and all of them end by themselves
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
    """Looks on with an eye on the state, and takes the time."""

    def __init__(self) -> None:
        self.round_seconds: list[float] = []
        self.events = 0
        self.lost = 0
        self.ended = False
        self._check = InvariantCheck()
        self._began_at = 0.0

    def handled(self, step: Observation) -> None:
        """Count, and now and then check the state."""
        self.events += 1
        self._check.handled(step)

    def acting(self, step: Observation) -> None:
        """Take the time of rounds."""
        event = step.event
        if isinstance(event, on.Prepared):
            self._began_at = event.at_seconds
        elif isinstance(event, on.Aggregated):
            self.round_seconds.append(event.at_seconds - self._began_at)
            self._began_at = event.at_seconds
        for fact in step.facts:
            self.lost += isinstance(fact, facts.Dismissed)
            self.ended = self.ended or isinstance(fact, facts.Concluded)
