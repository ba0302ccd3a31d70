"""The memory that a process may still take is what its machine and its cgroups leave it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from downpour.host import machine as memory
from downpour.host.machine import free_memory, kills, own_memory


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine with 1000 bytes free; the process is in `/slice/job` of both cgroup versions."""
    for folder in ("memory/slice/job", "slice/job", "self"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "self" / "cgroup").write_text(
        "3:cpuset:/\n2:memory:/slice/job\n0::/slice/job\nnonsense:nonsense:x\n"
    )
    monkeypatch.setattr(memory, "_CGROUPS", tmp_path)
    monkeypatch.setattr(memory, "_PROC", tmp_path)
    free = SimpleNamespace(available=1000)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: free)
    return tmp_path


@pytest.mark.parametrize(
    ("group", "limit", "free"),
    [
        ("slice/job", "max", 1000),
        ("slice/job", "700", 400),
        ("slice", "350", 50),
        ("slice/job", "100", 0),
        ("slice/job", "5000", 1000),
        ("slice/job", "nonsense", 1000),
    ],
)
def test_a_group_limits_what_is_free(machine: Path, group: str, limit: str, free: int) -> None:
    """Its own or one above; cached files that nobody uses give way, so they count as free."""
    folder = machine / group
    (folder / "memory.max").write_text(f"{limit}\n")
    (folder / "memory.current").write_text("330\n")
    (folder / "memory.stat").write_text("anon 300\ninactive_file 30\n")
    assert free_memory() == free


@pytest.mark.parametrize(
    ("group", "limit", "free"),
    [("slice/job", "700", 400), ("slice", "350", 50), ("slice/job", str(2**63 - 4096), 1000)],
)
def test_a_group_of_the_first_version_does_so_too(
    machine: Path, group: str, limit: str, free: int
) -> None:
    """The largest number there is means that there is no limit."""
    folder = machine / "memory" / group
    (folder / "memory.limit_in_bytes").write_text(f"{limit}\n")
    (folder / "memory.usage_in_bytes").write_text("330\n")
    (folder / "memory.stat").write_text("inactive_file 10\ntotal_inactive_file 30\n")
    assert free_memory() == free


def test_without_groups_the_machine_counts(machine: Path) -> None:
    """As on macOS, where there is no /proc; nothing is known of kills there."""
    (machine / "self" / "cgroup").unlink()
    assert free_memory() == 1000
    assert kills() == 0


def test_kills_are_those_that_the_kernel_counts(machine: Path) -> None:
    """Among many other numbers."""
    (machine / "vmstat").write_text("nr_free_pages 77\noom_kill 3\n")
    assert kills() == 3


def test_memory_of_its_own_grows_with_what_a_process_holds() -> None:
    """By about as much."""
    before = own_memory()
    held = bytearray(b"x" * (64 << 20))
    assert own_memory() - before > len(held) / 2


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has such scores and limits")
def test_a_process_dies_first_and_is_refused_what_would_kill_it(tmp_path: Path) -> None:
    """Its score is the highest, and an allocation beyond its group's limit fails in it.

    A file that is mapped privately does not count. A process that serves others sets the limit for
    a while, and messages name it.
    """
    folder = tmp_path / "memory"
    folder.mkdir()
    (folder / "memory.limit_in_bytes").write_text(f"{64 << 20}\n")
    (folder / "memory.usage_in_bytes").write_text("0\n")
    (folder / "memory.stat").write_text("total_inactive_file 0\n")
    code = f"""if True:
        import os, resource
        from pathlib import Path
        from downpour.host import machine as memory
        memory.let_be_killed_first(os.getpid())
        print(Path("/proc/self/oom_score_adj").read_text().strip())
        memory._CGROUPS = Path({str(tmp_path)!r})
        memory._groups = lambda: [(memory._CGROUPS / "memory", memory._FIRST_VERSION)]
        memory.fail_instead_of_dying()
        held = bytearray(16 << 20)
        try:
            bytearray(128 << 20)
        except MemoryError:
            print("refused")
        memory.raise_limit(128 << 20)
        held = bytearray(128 << 20)
        print("mapped")
        memory.raise_limit(256 << 20)
        before = resource.getrlimit(resource.RLIMIT_DATA)
        try:
            with memory.failing_instead_of_dying():
                bytearray(128 << 20)
        except MemoryError:
            print(resource.getrlimit(resource.RLIMIT_DATA) == before)
        print(memory.told_limit().partition(" of ")[2])
    """
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    last = "the 64 MiB of its group are free"
    assert told.stdout.splitlines() == ["1000", "refused", "mapped", "True", last]
