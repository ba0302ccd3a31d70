"""The cores that a process may use are those that its machine, affinity and quota leave it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from downpour.host import machine as cores
from downpour.host.machine import usable_cores


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine of eight cores, whose cgroups are in a folder; the process is in `/slice/job`."""
    (tmp_path / "slice" / "job").mkdir(parents=True)
    own = tmp_path / "own"
    own.write_text("1:name=systemd:/elsewhere\n0::/slice/job\n")
    monkeypatch.setattr(cores, "_CGROUPS", tmp_path)
    monkeypatch.setattr(cores, "_OWN_CGROUP", own)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)), raising=False)
    return tmp_path


@pytest.mark.parametrize(
    ("group", "limit", "usable"),
    [
        ("slice/job", "max 100000", 8),
        ("slice/job", "150000 100000", 2),
        ("slice/job", "1000 100000", 1),
        ("slice/job", "1600000 100000", 8),
        ("slice", "300000 100000", 3),
        ("slice/job", "nonsense", 8),
    ],
)
def test_a_quota_limits_the_cores(machine: Path, group: str, limit: str, usable: int) -> None:
    """Its own or one above, rounded up: with a core and a half, two processes are worth while."""
    (machine / group / "cpu.max").write_text(f"{limit}\n")
    assert usable_cores() == usable


@pytest.mark.usefixtures("machine")
def test_without_a_quota_the_affinity_counts() -> None:
    """No group has a limit, as outside of containers."""
    assert usable_cores() == 8


def test_without_cgroups_the_affinity_counts(machine: Path) -> None:
    """As on macOS, where there is no /proc."""
    (machine / "own").unlink()
    assert usable_cores() == 8


def test_without_affinity_all_cores_count(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """MacOS does not say on which cores a process may run."""
    assert machine.is_dir()
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(os, "cpu_count", lambda: 10)
    assert usable_cores() == 10
