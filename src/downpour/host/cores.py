"""The number of cores that this process may use; a container or a batch system may limit it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from math import ceil
from pathlib import Path

_CGROUPS = Path("/sys/fs/cgroup")
_OWN_CGROUP = Path("/proc/self/cgroup")


def usable_cores() -> int:
    """Return the number of cores that this process may use, by its affinity and its CPU quota."""
    return max(1, min([_affine_cores(), *_quotas(_CGROUPS, _OWN_CGROUP)]))


def _affine_cores() -> int:
    if hasattr(os, "sched_getaffinity"):  # not on macOS
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _quotas(cgroups: Path, own_cgroup: Path) -> Iterator[int]:
    """Yield the CPU quotas of this process's cgroup and of its parents, in whole cores.

    `docker run --cpus 1.5` sets such a quota; we round it up to 2. We read only version 2 of
    cgroups.
    """
    try:
        lines = own_cgroup.read_text().splitlines()
    except OSError:
        return
    name = next((line.removeprefix("0::/") for line in lines if line.startswith("0::/")), "")
    own = cgroups / name
    for group in (own, *own.parents):
        if group.is_relative_to(cgroups):
            with suppress(OSError, ValueError):  # no such file at the root; "max" is not a number
                quota_us, period_us = (group / "cpu.max").read_text().split()
                yield ceil(int(quota_us) / int(period_us))
