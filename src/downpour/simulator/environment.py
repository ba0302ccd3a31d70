"""What every process of a simulated cluster shares, and how long things take there."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Literal

from downpour.node.journal import Line
from downpour.predictor import Predictor
from downpour.scheduler import Entry, Scheduler
from downpour.scheduler import commands as do
from downpour.scheduler import events as on
from downpour.scheduler.facts import Fact
from downpour.simulator.clock import Clock
from downpour.simulator.disk import Disk, DiskTimings
from downpour.simulator.machines import Machines
from downpour.simulator.network import Network
from downpour.stragglers import POLICIES, Policy
from downpour.values import AttemptId

Stories = dict[str, list[Line]]
"""The journaled lines of experiments."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timings:
    """How long things take; seconds, but for `spread`, which is relative to `task_seconds`.

    `event_seconds` is what an event costs the manager; `update_seconds` what each update adds to an
    aggregation. Workers differ by `worker_spread`, tasks of one worker by `spread`. Every so many
    `snapshot_seconds` a worker publishes the state of its task; 0: never. It does not train for
    `saving_seconds` then, nor for `resuming_seconds` where it goes on from one. `shard_samples` are
    examples.
    """

    task_seconds: float = 2.0
    spread: float = 0.3
    worker_spread: float = 0.3
    network_seconds: float = 0.005
    deadline_seconds: float | None = 3.0
    event_seconds: float = 0.0002
    prepare_seconds: float = 0.5
    aggregate_seconds: float = 0.1
    update_seconds: float = 0.001
    evaluate_seconds: float = 0.5
    recover_seconds: float = 0.2
    restart_seconds: float = 1.0
    heartbeat_seconds: float = 1.0
    snapshot_seconds: float = 0.0
    saving_seconds: float = 0.0
    resuming_seconds: float = 0.0
    shard_samples: int = 10
    patience: float = 0.4
    checkpoint_rounds: int = 50
    disk: DiskTimings = field(default_factory=DiskTimings)


@dataclass(slots=True)
class Observation:
    """An event that a core has taken in, what followed, and what will be journaled of it."""

    core: Scheduler
    term: int
    event: on.Event
    commands: Sequence[do.Command]
    facts: Sequence[Fact]
    kept: Sequence[Entry]


What = Literal["met", "asked", "told", "begins", "stopped", "trained", "free", "leaves", "beats"]


@dataclass(slots=True)
class WorkerAction:
    """What happens at a worker, as others see it.

    It `met` a manager of a term, was `asked` for an attempt by one, was `told` to stop one; it
    `begins` an attempt, `stopped` or `trained` it, is `free` of it when its report was taken, and
    `beats`, telling which `attempts` it holds.
    """

    worker: object
    what: What
    at_seconds: float
    attempts: tuple[AttemptId, ...] = ()
    term: int = 0


class Observer:
    """Whoever looks on, and raises AssertionError where something is wrong; this one never does."""

    def recovered(self, core: Scheduler, stories: Stories) -> None:
        """See that a manager has taken up what was left, and begins its term."""

    def handled(self, step: Observation) -> None:
        """See that a core has taken in an event."""

    def acting(self, step: Observation) -> None:
        """See that a manager, what it must keep being kept, acts on an event and answers."""

    def working(self, happened: WorkerAction) -> None:
        """See what happens at a worker."""


@dataclass(slots=True)
class Environment:
    """The world as a process sees it; `tell` adds a line to the story.

    Managers forecast with a `predictor` of their own, where there is one.
    """

    clock: Clock
    random: Random
    network: Network
    disk: Disk
    timings: Timings
    machines: Machines
    observer: Observer
    tell: Callable[[str], None]
    predictor: Callable[[], Predictor] | None = None
    policies: Mapping[str, Policy] = field(default_factory=lambda: POLICIES)

    def token(self) -> str:
        """Return what makes a name unique."""
        return f"{self.random.getrandbits(48):012x}"
