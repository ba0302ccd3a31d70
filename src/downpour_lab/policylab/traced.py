"""Conditions by scenario: from recorded jobs, and synthetic."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from downpour.base.errors import SpecError, did_you_mean
from downpour.base.values import SystemState
from downpour.predictor.features import ELAPSED, STATE
from downpour_lab.fitting.training_data import REQUIRED, TARGET, Job, Traces, read_traces
from downpour_lab.policylab.conditions import SAMPLES, Conditions, Curve, Memoryless, OneStraggler

_REPORTS = (10, 25, 50)
_SHARES = (*(percent / 100 for percent in _REPORTS), 1.0)
_NEEDED = (
    *STATE,
    *(f"p{percent}_{name}" for percent in _REPORTS for name in (ELAPSED, *STATE)),
)
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
    smaller continues at its last rate. The standbys are workers of another job of the same
    scenario.

    Args:
        job: the recording.
        others: the recordings that the standbys come from.
        standbys: the number of standbys.
        seed: decides which of the others' workers stand by.
        rounds: how many of the job's rounds to use; without it, all of them.
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


Make = Callable[..., Conditions]

WHEN = {"straggler-early": 0.1, "straggler-middle": 0.5, "straggler-late": 0.8}
"""The share of a round after which one host is slow."""

MADE_UP: dict[str, Make] = {
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
