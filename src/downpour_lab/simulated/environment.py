"""The environment of a simulated cluster's processes, their machines, and how long all takes.

In the search for faults, the machines' state and the course of a training are random or constant.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from random import Random
from typing import Any, Literal, Protocol

from downpour.base.errors import DownpourError
from downpour.base.values import AttemptId, Forecast, SystemState
from downpour.core.node.journal import Line
from downpour.core.scheduler import Entry, Output, Scheduler
from downpour.core.scheduler import events as on
from downpour.core.spec import ResolvedSpec
from downpour.core.stragglers.base import POLICIES, Policy
from downpour.predictor import Predictor
from downpour.predictor.features import Features, Request
from downpour_lab.simulated.disk import Disk, DiskTimings
from downpour_lab.simulated.threads import Clock, Network, Process

Stories = dict[str, list[Line]]
"""The journaled lines of each experiment."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timings:
    """How long everything takes, in seconds.

    `task_seconds` is the median time of a shard. It differs between workers by `worker_spread`, and
    between the tasks of one worker by `spread`, both relative to it. `event_seconds` is the
    manager's time for an event, `update_seconds` the time for each update in an aggregation. A
    worker publishes the state of its task every `snapshot_seconds`; 0 means never. It pauses
    training for `saving_seconds` then, and for `resuming_seconds` when it continues from a
    snapshot. A shard has `shard_samples` examples, and a task `shard_steps` steps.
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
    shard_steps: int = 100
    patience: float = 0.4
    checkpoint_rounds: int = 50
    disk: DiskTimings = field(default_factory=DiskTimings)


@dataclass(slots=True)
class Observation:
    """An event that a core has handled, its output, and the entries to journal."""

    core: Scheduler
    term: int
    event: on.Event
    output: Output
    kept: Sequence[Entry]


What = Literal[
    "met", "asked", "cancelled", "to hand over", "begins", "saves", "saved", "stopped", "trained",
    "free", "leaves", "drains", "beats", "heard",
]  # fmt: skip


@dataclass(slots=True)
class WorkerAction:
    """A visible action of a worker.

    A worker `met` a manager of a term, was `asked` for an attempt, had one `cancelled`, or is `to
    hand over` its state. It `begins` an attempt, `saves` its state and has `saved` it, has
    `stopped` or `trained` it, and is `free` of it when the manager acknowledges its report. If it
    `drains`, it begins no attempt that it is asked for from now on. If it `beats`, it sends a
    heartbeat that mentions the `attempts` it holds; then the manager has `heard` it. `own_steps`
    are the attempt's steps that the worker itself has made, and `steps_left` the remaining ones.
    """

    worker: object
    what: What
    at_seconds: float
    attempts: tuple[AttemptId, ...] = ()
    term: int = 0
    own_steps: int = 0
    steps_left: int = 0


class Observer:
    """Sees what happens in a run; checks raise AssertionError. This one does nothing."""

    def recovered(self, core: Scheduler, stories: Stories) -> None:
        """A manager has replayed the journals, and begins its term."""

    def handled(self, step: Observation) -> None:
        """A core has handled an event."""

    def acting(self, step: Observation) -> None:
        """A manager has journaled an event as far as it must, and acts on it now."""

    def working(self, happened: WorkerAction) -> None:
        """A worker has acted."""


@dataclass(slots=True)
class Environment:
    """The clock, network, directory and machines of a run; `tell` adds a line to its story.

    Each manager makes its own predictor with `predictor`; without it, managers don't forecast. The
    `hopeless` tasks, by experiment, round and shard, fail on every worker.
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
    hopeless: set[tuple[str, int, int]] = field(default_factory=set)

    def token(self, size_bytes: int) -> str:
        """Return a random token that makes a file's name unique."""
        return f"{self.random.getrandbits(8 * size_bytes):0{2 * size_bytes}x}"


_CONTINUING_SECONDS = 30.0
_AGAIN_SECONDS = 1.0


class SimulatedClient(Process):
    """Calls the managers in turn until one answers; each method needs its own thread."""

    def __init__(self, environment: Environment, managers: list[str]) -> None:
        super().__init__(environment.clock, "client")
        self._environment = environment
        self._managers = managers
        self.acknowledged: set[str] = set()

    def submit(self, experiment: str, spec: ResolvedSpec) -> None:
        """Submit an experiment, repeating the call until a manager acknowledges it."""
        self._insist("submit", experiment, spec)
        if experiment not in self.acknowledged:
            self.acknowledged.add(experiment)
            self._environment.tell(f"{experiment} is taken in")

    def cancel(self, experiment: str) -> None:
        """Cancel an experiment, repeating the call until a manager acknowledges it."""
        self._insist("cancel", experiment)

    def pause(self, experiment: str, seconds: float) -> None:
        """Pause an experiment for some seconds."""
        self._insist("pause", experiment, True)  # noqa: FBT003 - as it is called remotely
        self.sleep(seconds)
        while True:  # again and again, because the first call may arrive a second time, and later
            self._insist("pause", experiment, False)  # noqa: FBT003
            self.sleep(_CONTINUING_SECONDS)

    def drain(self, worker: str) -> None:
        """Ask a worker once to finish its tasks and leave; the caller sees whether it does."""
        with suppress(DownpourError):
            self._environment.network.call(self, worker, "drain")

    def _insist(self, method: str, *args: Any) -> None:
        while True:
            try:
                self._environment.network.call(self, self._managers[0], method, *args)
            except DownpourError:
                self._managers.append(self._managers.pop(0))
                self.sleep(_AGAIN_SECONDS)
            else:
                return


_IDLE = SystemState(cpu_others=0.0, load_average=0.0, memory_used=0.0, io_wait=0.0)


def labels_of(machine: str) -> tuple[str, str]:
    """Return the labels of a worker's machine: its site (a and b take turns) and its rack."""
    number = int("".join(filter(str.isdigit, machine)) or 0)
    return f"site={'ba'[number % 2]}", f"rack={number % 3}"


class Course(Protocol):
    """How an undisturbed task progresses; seconds count from its beginning."""

    def share(self, seconds: float) -> float:
        """Return the share of the task that is done after some seconds, in 0..1."""

    def when(self, share: float) -> float:
        """Return the seconds after which this share of the task is done."""


class Machines(Protocol):
    """The machines of all workers."""

    def course(self, machine: str, attempt: AttemptId, at_seconds: float, work: float) -> Course:
        """Return the course of a training that begins now; `work` is in usual shards."""

    def state(self, machine: str, at_seconds: float) -> SystemState:  # noqa: ARG002
        """Return the machine's state, which a heartbeat reports now: idle, unless it is known."""
        return _IDLE


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


class RandomMachines(Machines):
    """Machines that differ in pace, and whose tasks vary around it; both log-normally.

    The spreads in `timings` are standard deviations of the log times.
    """

    def __init__(self, names: tuple[str, ...], timings: Timings, random: Random) -> None:
        self._random = random
        self._spread = timings.spread
        pace = timings.task_seconds, timings.worker_spread
        self._paces = {name: self._varied(*pace) for name in names}

    def course(
        self,
        machine: str,
        attempt: AttemptId,  # noqa: ARG002 - whatever it is, and whenever
        at_seconds: float,  # noqa: ARG002
        work: float,
    ) -> Course:
        """Return the course of a training that begins now: a constant speed."""
        return Steady(self._varied(self._paces[machine], self._spread) * work)

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
