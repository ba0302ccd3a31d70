"""The state of a worker's machine and of its process, sampled for heartbeats.

`cpu_others` leaves out the worker itself, because its own load says nothing about stragglers. The
worker reports its own process's use for people. Shares of processor time are differences between
two samples, so the samplers remember the previous one.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable

import psutil

from downpour.base.values import ProcessState, SystemState
from downpour.host.machine import HELPER_PIDS

_NEARLY = 0.9
"""A heartbeat that comes a little early still brings a sample."""


class SystemSampler:
    """Samples the state of the machine, and the use of this process and its helpers."""

    def __init__(self) -> None:
        self._process = psutil.Process()
        self._cores = psutil.cpu_count() or 1
        self._seen_at = time.monotonic()
        self._own_seconds = sum(map(_cpu_seconds, self._family()))
        self._times = psutil.cpu_times()

    def sample(self) -> tuple[SystemState, ProcessState]:
        """Return both, averaged since the last call."""
        family, now, times = self._family(), time.monotonic(), psutil.cpu_times()
        own = sum(map(_cpu_seconds, family))
        # Never 0, because two scrapes of the metrics may come at the same moment.
        seconds = max(1e-3, now - self._seen_at)
        elapsed, mine = seconds * self._cores, own - self._own_seconds
        idle = times.idle - self._times.idle
        # Only Linux has `iowait`.
        waiting = getattr(times, "iowait", 0.0) - getattr(self._times, "iowait", 0.0)
        self._seen_at, self._own_seconds, self._times = now, own, times
        system = SystemState(
            cpu_others=_share(1 - (idle + waiting + mine) / elapsed),
            load_average=os.getloadavg()[0],
            memory_used=_share(psutil.virtual_memory().percent / 100),
            io_wait=_share(waiting / elapsed),
        )
        return system, ProcessState(
            cpu_share=max(0.0, mine / seconds),
            memory_bytes=int(sum(_of(one, lambda one: one.memory_info().rss) for one in family)),
            threads=int(sum(_of(one, psutil.Process.num_threads) for one in family)),
        )

    def _family(self) -> list[psutil.Process]:
        """Return this process and its helpers.

        We name them and don't search, because psutil reads all of /proc for a process's children.
        That took 3 ms, and a sample may cost 1 % of a task's processor time.
        """
        return [self._process, *filter(None, map(_alive, tuple(HELPER_PIDS)))]


class Samples:
    """The state of the machine and of this process, sampled no more often than the caller wants.

    Sampling takes longer than the rest of a heartbeat, and a machine's state over a tenth of a
    second says little. So only one of ten heartbeats per second brings a sample.
    """

    def __init__(self) -> None:
        self._sampler = SystemSampler()
        self._system: SystemState | None = None
        self._sampled_at = time.monotonic()

    def take(self, every_seconds: float) -> tuple[SystemState, ProcessState | None]:
        """Return the last state of the machine, and the state of the process if it is new."""
        now = time.monotonic()
        if self._system is not None and now - self._sampled_at < _NEARLY * every_seconds:
            return self._system, None
        self._sampled_at = now
        self._system, process = self._sampler.sample()
        return self._system, process


def _alive(pid: int) -> psutil.Process | None:
    try:
        return psutil.Process(pid)
    except psutil.NoSuchProcess:
        return None


def _cpu_seconds(process: psutil.Process) -> float:
    return _of(process, lambda one: sum(one.cpu_times()[:2]))


def _of(process: psutil.Process, measure: Callable[[psutil.Process], float]) -> float:
    """Measure a process; 0 if it has ended meanwhile."""
    try:
        return measure(process)
    except psutil.NoSuchProcess:
        return 0


def _share(value: float) -> float:
    return min(1.0, max(0.0, value))
