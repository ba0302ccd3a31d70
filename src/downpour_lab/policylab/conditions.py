"""The conditions for comparing policies: the speed of each host in each round.

A job has hosts that train, followed by standby hosts. Conditions are synthetic, or come from
recorded jobs.
"""

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any, Protocol

import numpy as np

from downpour.base.errors import SpecError, did_you_mean
from downpour.base.values import AttemptId, SystemState
from downpour.predictor.features import ELAPSED, STATE
from downpour_lab.fitting.training_data import REQUIRED, TARGET, Job, Traces, read_traces
from downpour_lab.simulated.environment import Course


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

    def state(self, number: int, host: int, seconds: float) -> SystemState:
        """Return a host's state, some seconds after the beginning of a round."""


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


_REPORTS = (10, 25, 50)
_SHARES = (*(percent / 100 for percent in _REPORTS), 1.0)
_NEEDED = (*STATE, *(f"p{percent}_{name}" for percent in _REPORTS for name in (ELAPSED, *STATE)))
_UNKNOWN = "traced"
_CACHED = 4096

Table = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True, slots=True)
class Recording:
    """A recorded job, as arrays of shape [round, worker, ...].

    `seconds` are the times of the reports and of the end. `shares` are the work done by then, in
    shards of the usual size. `states` are the machine's, at the beginning and at the reports.
    """

    number: int
    scenario: str
    seconds: Table
    shares: Table
    states: Table

    @property
    def rounds(self) -> int:
        """The number of rounds."""
        return len(self.seconds)

    @property
    def workers(self) -> int:
        """The number of workers."""
        return int(self.seconds.shape[1])


class TracedJob:
    """The conditions of one recorded job.

    A worker's curve goes through the work it had done at each report and at its end. In some jobs
    the sizes of tasks differ. Here every shard has the usual size, and a worker whose task was
    smaller continues at its last rate. The standbys are workers of `others`, jobs of the same
    scenario, which the seed draws. It uses all rounds, or only the first `rounds`.
    """

    samples = SAMPLES

    def __init__(
        self,
        job: Recording,
        others: Sequence[Recording],
        *,
        standbys: int = 1,
        seed: int = 0,
        rounds: int | None = None,
    ) -> None:
        self.scenario = job.scenario
        self.name = f"job {job.number}"
        self.rounds = min(job.rounds, rounds or job.rounds)
        self.hosts = job.workers
        self.task_seconds = float(np.median(job.seconds[..., -1] / job.shares[..., -1]))
        draw = Random(f"standby {seed} {job.number}")
        self._places = [(job, worker, 0) for worker in range(job.workers)]
        for _ in range(standbys):
            other = draw.choice(others or [job])
            shift = 0 if others else job.rounds // 2
            self._places.append((other, draw.randrange(other.workers), shift))
        self.curve = lru_cache(_CACHED)(self._curve)

    def _curve(self, number: int, host: int) -> Curve:
        job, at = self._find(number, host)
        seconds, shares = job.seconds[at].tolist(), job.shares[at].tolist()
        return Curve((0.0, *seconds), (0.0, *shares))

    def state(self, number: int, host: int, seconds: float) -> SystemState:
        """Return a host's state at its last report; after its end, at the next beginning."""
        job, at = self._find(number, host)
        place = int(np.searchsorted(job.seconds[at], seconds, side="right"))
        if place < len(_SHARES):
            return _state(job.states[at][place])
        job, at = self._find(number + 1, host)
        return _state(job.states[at][0])

    def _find(self, number: int, host: int) -> tuple[Recording, tuple[int, int]]:
        job, worker, shift = self._places[host]
        return job, ((number + shift) % job.rounds, worker)


def _state(values: Table) -> SystemState:
    cpu, load, memory, io_wait = values.tolist()
    return SystemState(cpu_others=cpu, load_average=load, memory_used=memory, io_wait=io_wait)


def read_recordings(path: Path) -> list[Recording]:
    """Read the jobs of a trace; `jobs.json` next to it has their scenarios."""
    traces = read_traces(path)
    for name in _NEEDED:
        if name not in traces.columns:
            needed = ", ".join([*REQUIRED, *STATE])
            accepted = f"needed are {needed}, and p10_, p25_ and p50_{ELAPSED} and the states then"
            raise SpecError("traces", str(path), f"has no column {name}; {accepted}")
    return [_recording(path, traces, job) for job in traces.jobs]


def _recording(path: Path, traces: Traces, job: Job) -> Recording:
    number, columns = job.number, traces.columns
    if len({len(rows) for rows in job.rounds}) > 1:
        raise SpecError("traces", str(path), f"job {number}: a round lacks workers")
    order = np.stack(job.rounds)
    order = np.take_along_axis(order, np.argsort(columns["worker"][order], axis=1), axis=1)
    times = [columns[f"p{percent}_{ELAPSED}"][order] for percent in _REPORTS]
    seconds = np.stack([*times, columns[TARGET][order]], axis=-1)
    if not (np.diff(seconds, axis=-1, prepend=0.0) > 0).all():
        raise SpecError(
            "traces", str(path), f"job {number}: times of reports must rise from 0 or above"
        )
    shares = columns["n_samples"][order][..., None] / SAMPLES * np.array(_SHARES)
    places = ["", *(f"p{percent}_" for percent in _REPORTS)]
    states = [np.stack([columns[at + name][order] for name in STATE], -1) for at in places]
    scenario = traces.labels.get(number, {}).get("scenario", _UNKNOWN)
    return Recording(number, scenario, seconds, shares, np.nan_to_num(np.stack(states, axis=-2)))


WHEN = {"straggler-early": 0.1, "straggler-middle": 0.5, "straggler-late": 0.8}
"""The share of a round after which one host is slow."""

MADE_UP: dict[str, Callable[..., Conditions]] = {
    "one-straggler": partial(OneStraggler, from_share=0.0),
    **{
        name: partial(OneStraggler, from_share=share, scenario=name) for name, share in WHEN.items()
    },
    "memoryless": Memoryless,
}


def scenarios_of(recordings: Sequence[Recording]) -> list[str]:
    """Return the names of all scenarios, beginning with those of the trace."""
    return [*dict.fromkeys(recording.scenario for recording in recordings), *MADE_UP]


def conditions_of(
    recordings: Sequence[Recording],
    scenario: str,
    *,
    jobs: int,
    rounds: int,
    standbys: int,
    seed: int = 0,
) -> list[Conditions]:
    """Return the jobs of a scenario; if it has too many, pick evenly spread ones.

    Each job has at most `rounds` rounds, and `standbys` standby workers.
    """
    hosts = min(recording.workers for recording in recordings)
    if not 0 <= standbys <= hosts:
        accepted = f"must be from 0 to {hosts}, the workers of the trace"
        raise SpecError("standbys", standbys, accepted)
    if scenario in MADE_UP:
        return [
            MADE_UP[scenario](seed=seed + number, rounds=rounds, hosts=hosts)
            for number in range(jobs)
        ]
    matching = [recording for recording in recordings if recording.scenario == scenario]
    if not matching:
        known = scenarios_of(recordings)
        accepted = f"must be of {', '.join(known)}{did_you_mean(scenario, known)}"
        raise SpecError("scenario", scenario, accepted)
    return [
        TracedJob(
            recording,
            [other for other in matching if other is not recording],
            standbys=standbys,
            seed=seed,
            rounds=rounds,
        )
        for recording in _spread(matching, jobs)
    ]


def _spread(recordings: Sequence[Recording], count: int) -> list[Recording]:
    """Return `count` recordings, evenly spread, with the first and the last if there are two."""
    if count >= len(recordings):
        return list(recordings)
    step = (len(recordings) - 1) / max(1, count - 1)
    return [recordings[round(step * place)] for place in range(count)]
