"""This machine: cores, memory, files without use for a while, and its load over time.

A container or a batch system limits a process by a cgroup; we read both versions of cgroups.

A sample's `cpu_others` leaves out the worker itself, because its own load says nothing about
stragglers. The worker reports its own process's use for people. Shares of processor time are
differences between two samples, so the samplers remember the previous one.
"""

import getpass
import mmap
import os
import re
import resource
import shutil
import socket
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from math import ceil
from pathlib import Path
from typing import NamedTuple

import psutil

from downpour.base.values import ProcessState, SystemState

_CGROUPS = Path("/sys/fs/cgroup")
_PROC = Path("/proc")


def usable_cores() -> int:
    """Return the number of cores that this process may use, by its affinity and its CPU quota."""
    has_affinity = hasattr(os, "sched_getaffinity")  # not on macOS
    cores = len(os.sched_getaffinity(0)) if has_affinity else os.cpu_count() or 1
    return max(1, min([cores, *_quotas()]))


def _quotas() -> Iterator[int]:
    """Yield the CPU quotas of this process's cgroup and of its parents, in whole cores.

    `docker run --cpus 1.5` sets one, which we round up to 2. We read only cgroups of version 2.
    """
    for group, _ in _groups():
        with suppress(OSError, ValueError):  # no such file at the root; "max" is not a number
            quota_us, period_us = (group / "cpu.max").read_text().split()
            yield ceil(int(quota_us) / int(period_us))


_MARGIN = 0.05
"""The share of free memory to leave for page tables, sockets, and files being written."""


class _Names(NamedTuple):
    """The files of a version of cgroups, and its word for unused cached files."""

    limit: str
    used: str
    cached: str


_UNIFIED = _Names("memory.max", "memory.current", "inactive_file")
_FIRST_VERSION = _Names("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")


def user_here() -> str:
    """Return who runs this process, as USER@HOST."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container's user may have no name
        user = str(os.getuid())
    return f"{user}@{socket.gethostname()}"


def free_memory() -> int:
    """Return how many bytes this process may still use on its machine, within its cgroups."""
    rooms = (room for _, room in _limited_groups())
    return max(0, min([psutil.virtual_memory().available, *rooms]))


def expect_random_reads(mapped: object) -> None:
    """Tell the kernel that a mapped file is read at random, unless memory can hold all of it.

    Otherwise it reads ahead at each place. We read 6 MB at random from a file of 1 GB, in a group
    with 256 MB. With reading ahead, the disk read 17 GB in 41 s. Without, it read 17 MB in 0.8 s.
    """
    if isinstance(mapped, mmap.mmap) and len(mapped) > free_memory():
        mapped.madvise(mmap.MADV_RANDOM)


HELPER_PIDS: set[int] = set()
"""The processes that work for this one, which their starters add and remove."""


def own_memory() -> int:
    """Return the bytes that this process has for itself and shares with no other process."""
    memory = psutil.Process().memory_info()
    return max(0, memory.rss - getattr(memory, "shared", 0))


def kills() -> int:
    """Return how often the kernel has killed a process of this machine for lack of memory.

    The count includes limited groups. On systems that don't count (macOS), it is 0.
    """
    with suppress(OSError, ValueError):
        return _number(_PROC / "vmstat", "oom_kill")
    return 0


def let_be_killed_first(pid: int) -> None:
    """Let the kernel kill process `pid` before others if memory runs out (Linux)."""
    with suppress(OSError):  # it has ended, or the file does not exist
        (_PROC / str(pid) / "oom_score_adj").write_text("1000")  # the highest score


def fail_instead_of_dying() -> tuple[int, int] | None:
    """Make an allocation fail if it would exceed a cgroup's limit; return the former limits.

    Otherwise, the kernel would kill the process without giving a reason. We do this only if a
    cgroup has a limit, because a machine's free memory changes as other processes come and go.
    Without such a limit, this changes nothing and returns None.
    """
    free = min((room for _, room in _limited_groups()), default=None)
    if sys.platform != "linux" or free is None:
        return None
    with suppress(OSError, ValueError):
        data = 1024 * _number(_PROC / "self" / "status", "VmData:")
        soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
        wanted = data + int(free * (1 - _MARGIN))
        if hard == resource.RLIM_INFINITY or wanted < hard:
            resource.setrlimit(resource.RLIMIT_DATA, (wanted, hard))
            return soft, hard
    return None


@contextmanager
def failing_instead_of_dying() -> Iterator[None]:
    """Return a context in which `fail_instead_of_dying` holds, for a process that serves others."""
    former = fail_instead_of_dying()
    try:
        yield
    finally:
        if former is not None:
            resource.setrlimit(resource.RLIMIT_DATA, former)


def told_limit() -> str:
    """Say, for the end of a sentence, how much memory is free, and the limit of its cgroups."""
    limit = min((limit for limit, _ in _limited_groups()), default=None)
    of_all = f" of the {limit / 2**20:.0f} MiB of its group" if limit is not None else ""
    return f"{free_memory() / 2**20:.0f} MiB{of_all} are free"


def raise_limit(count_bytes: int) -> None:
    """Raise the limit of `fail_instead_of_dying` to make room for a private mapping of a file.

    The mapping counts as data, although its pages are a cache: the kernel drops unmodified ones.
    """
    if sys.platform != "linux":
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    if soft not in (resource.RLIM_INFINITY, hard):
        most = sys.maxsize if hard == resource.RLIM_INFINITY else hard
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_DATA, (min(soft + count_bytes, most), hard))


def _limited_groups() -> Iterator[tuple[int, int]]:
    """Yield the limits of this process's cgroup and of its parents, and the bytes left below."""
    for group, names in _groups():
        with suppress(OSError, ValueError):  # no such file at the root; "max" is no number
            limit = int((group / names.limit).read_text())
            used = int((group / names.used).read_text())
            # A group of the first version without a limit has the largest possible number.
            if limit < 1 << 60:
                yield limit, limit - used + _number(group / "memory.stat", names.cached)


def _groups() -> Iterator[tuple[Path, _Names]]:
    with suppress(OSError):
        for line in (_PROC / "self" / "cgroup").read_text().splitlines():
            _, kinds, name = line.split(":", 2)
            if not kinds or "memory" in kinds.split(","):
                root, names = (_CGROUPS / kinds, _FIRST_VERSION) if kinds else (_CGROUPS, _UNIFIED)
                own = root / name.removeprefix("/")
                yield from ((one, names) for one in (own, *own.parents) if one.is_relative_to(root))


def _number(file: Path, key: str) -> int:
    """Return the number after a key in a file of lines; raises ValueError without the key."""
    (number,) = re.findall(rf"^{key}\s+(\d+)", file.read_text(), re.MULTILINE)
    return int(number)


_DAY_SECONDS = 86_400
_UNUSED_SECONDS = 30 * _DAY_SECONDS


def note_use(path: Path) -> None:
    """Set a path's time of change, at most once a day: processes that verified a file check it."""
    with suppress(OSError):
        if time.time() - path.stat().st_mtime > _DAY_SECONDS:
            os.utime(path)


def remove_unused(paths: Iterable[Path]) -> None:
    """Remove files and folders unused for a month; processes that map such a file still have it."""
    for path in paths:
        with suppress(OSError):
            if time.time() - path.lstat().st_mtime <= _UNUSED_SECONDS:
                continue
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink()


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
