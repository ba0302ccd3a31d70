"""Shares of this machine: a cgroup for each host, that limits its processors and its memory.

Both versions of cgroups will do. Groups outlive processes, so whoever finds those of a killed lab
removes them.
"""

import math
import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from tests.lab.failing import NoLab, until

ROOT = Path("/sys/fs/cgroup")
_PERIOD_MICROSECONDS = 20_000  # shorter than usual: a host at a quarter stands still less long
_QUOTA_MICROSECONDS = 1000  # the kernel's least
_KINDS = ("cpu", "memory")


def _is_unified() -> bool:
    return (ROOT / "cgroup.controllers").is_file()


def _roots() -> list[Path]:
    return [ROOT] if _is_unified() else [ROOT / kind for kind in _KINDS]


def why_no_shares() -> str:
    """Say in a few words why there can be no groups here; empty where there can be."""
    for root in _roots():
        if not (root / "cgroup.procs").is_file():
            return f"a lab needs a cgroup at {root}"
        if not os.access(root / "cgroup.procs", os.W_OK) or not os.access(root, os.W_OK):
            return f"a lab needs to write in {root}"
    return ""


class HostShare:
    """The groups of one host: the processes in them share its limits."""

    def __init__(self, lab: str, host: str) -> None:
        self._folders = [root / lab / host for root in _roots()]
        try:
            for folder in self._folders:
                if _is_unified():
                    for above in (ROOT, ROOT / lab):
                        above.mkdir(exist_ok=True)
                        (above / "cgroup.subtree_control").write_text("+cpu +memory")
                folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise NoLab(f"no cgroup for {host}: {error}") from None

    @property
    def entrances(self) -> list[Path]:
        """The files into which a process writes its ID to be in the groups."""
        return [folder / "cgroup.procs" for folder in self._folders]

    def limit_processors(self, processors: float | None) -> None:
        """Let the host use so much time of processors, as 0.25 of one; None: all there is."""
        period, quota = _PERIOD_MICROSECONDS, None
        if processors is not None:
            period = max(period, math.ceil(_QUOTA_MICROSECONDS / processors))
            quota = max(_QUOTA_MICROSECONDS, int(processors * period))
        if _is_unified():
            self._write("cpu.max", f"{'max' if quota is None else quota} {period}")
        else:
            self._write("cpu.cfs_period_us", period)
            self._write("cpu.cfs_quota_us", -1 if quota is None else quota)

    def limit_memory(self, memory_bytes: int | None) -> None:
        """Let the host use so much memory, and nothing that is swapped out; None: all there is.

        The kernel kills a process of a host that wants more.
        """
        if _is_unified():
            self._write("memory.max", "max" if memory_bytes is None else memory_bytes)
            with suppress(OSError):  # absent where there is no swap
                self._write("memory.swap.max", "max" if memory_bytes is None else 0)
            return
        limit = -1 if memory_bytes is None else memory_bytes
        # The limit with swap is never below the other one, whichever way both go.
        names = ["memory.limit_in_bytes", "memory.memsw.limit_in_bytes"]
        for name in names if limit >= 0 else reversed(names):
            with suppress(FileNotFoundError):
                self._write(name, limit)

    def close(self) -> None:
        """Kill whatever is left, and remove the groups."""
        for folder in self._folders:
            _remove(folder)

    def _write(self, name: str, value: object) -> None:
        for folder in self._folders:
            if (folder / name).exists():
                (folder / name).write_text(str(value))


def remove_shares(lab: str) -> None:
    """Remove all groups of a lab, and kill what is in them."""
    for root in _roots():
        for host in _folders_in(root / lab):
            _remove(host)
        with suppress(FileNotFoundError):
            (root / lab).rmdir()


def _folders_in(folder: Path) -> Iterator[Path]:
    if folder.is_dir():
        yield from (path for path in folder.iterdir() if path.is_dir())


def _remove(folder: Path) -> None:
    def is_gone() -> bool:
        with suppress(FileNotFoundError):
            for process in (folder / "cgroup.procs").read_text().split():
                with suppress(ProcessLookupError):
                    os.kill(int(process), signal.SIGKILL)
        with suppress(OSError):
            folder.rmdir()
        return not folder.exists()

    until(f"{folder} is empty", is_gone)
