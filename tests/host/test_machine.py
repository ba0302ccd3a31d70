"""Cores, memory, and files without use for a while."""

import mmap
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from downpour.host import machine as host

SMAPS = Path("/proc/self/smaps")


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine of eight cores with 1000 bytes free; the process is in `/slice/job` of its cgroups.

    Their folder has both versions of cgroups.
    """
    for folder in ("memory/slice/job", "slice/job", "self"):
        (tmp_path / folder).mkdir(parents=True)
    groups = (
        "3:cpuset:/",
        "2:memory:/slice/job",
        "1:cpu:/other",
        "0::/slice/job",
        "x:x:x",
    )
    (tmp_path / "self" / "cgroup").write_text("\n".join(groups))
    monkeypatch.setattr(host, "_CGROUPS", tmp_path)
    monkeypatch.setattr(host, "_PROC", tmp_path)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)), raising=False)
    free = SimpleNamespace(available=1000)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: free)
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
    assert host.usable_cores() == usable


@pytest.mark.usefixtures("machine")
def test_without_a_quota_the_affinity_counts() -> None:
    """No group has a limit, as outside of containers."""
    assert host.usable_cores() == 8


@pytest.mark.usefixtures("machine")
def test_without_affinity_all_cores_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """MacOS does not say on which cores a process may run."""
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(os, "cpu_count", lambda: 10)
    assert host.usable_cores() == 10


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
    assert host.free_memory() == free


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
    assert host.free_memory() == free


def test_without_groups_the_machine_counts(machine: Path) -> None:
    """As on macOS, where there is no /proc; nothing is known of kills there."""
    (machine / "self" / "cgroup").unlink()
    assert host.usable_cores() == 8
    assert host.free_memory() == 1000
    assert host.kills() == 0


def test_kills_are_those_that_the_kernel_counts(machine: Path) -> None:
    """Among many other numbers."""
    (machine / "vmstat").write_text("nr_free_pages 77\noom_kill 3\n")
    assert host.kills() == 3


def test_memory_of_its_own_grows_with_what_a_process_holds() -> None:
    """By about as much. In a process of its own: a test may have told this one to reuse memory."""
    lines = (
        "from downpour.host.machine import own_memory",
        "before = own_memory()",
        "held = bytearray(b'x' * (64 << 20))",
        "print(own_memory() - before)",
    )
    words = [sys.executable, "-c", "\n".join(lines)]
    grown = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    assert int(grown) > (64 << 20) / 2


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
        from downpour.host import machine as host
        host.let_be_killed_first(os.getpid())
        print(Path("/proc/self/oom_score_adj").read_text().strip())
        host._CGROUPS = Path({str(tmp_path)!r})
        host._groups = lambda: [(host._CGROUPS / "memory", host._FIRST_VERSION)]
        host.fail_instead_of_dying()
        held = bytearray(16 << 20)
        try:
            bytearray(128 << 20)
        except MemoryError:
            print("refused")
        host.raise_limit(128 << 20)
        held = bytearray(128 << 20)
        print("mapped")
        host.raise_limit(256 << 20)
        before = resource.getrlimit(resource.RLIMIT_DATA)
        try:
            with host.failing_instead_of_dying():
                bytearray(128 << 20)
        except MemoryError:
            print(resource.getrlimit(resource.RLIMIT_DATA) == before)
        print(host.told_limit().partition(" of ")[2])
    """
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    last = "the 64 MiB of its group are free"
    assert told.stdout.splitlines() == ["1000", "refused", "mapped", "True", last]


DAY_SECONDS = 86_400


def aged(path: Path, days: float) -> Path:
    """Set when a path was changed."""
    at = time.time() - days * DAY_SECONDS
    os.utime(path, (at, at), follow_symlinks=False)
    return path


def test_files_folders_and_links_go_after_a_month(tmp_path: Path) -> None:
    """A link goes alone: what it leads to is another's."""
    other = tmp_path / "other"
    (other / "inside").mkdir(parents=True)
    place = tmp_path / "place"
    for name in ("old", "recent"):
        (place / name).mkdir(parents=True)
        (place / name / "file").write_bytes(b"")
        (place / f"{name}.npy").write_bytes(b"")
        (place / f"{name}-link").symlink_to(other)
    for path in place.iterdir():
        aged(path, 31 if path.name.startswith("old") else 29)
    host.remove_unused([*place.iterdir(), place / "missing"])
    assert sorted(path.name for path in place.iterdir()) == ["recent", "recent-link", "recent.npy"]
    assert (other / "inside").is_dir()


def test_a_use_is_noted_once_a_day(tmp_path: Path) -> None:
    """Not more often, because a reader that verified the file looks at its time of change."""
    recent, old = aged(tmp_path, 0.5), tmp_path / "old"
    old.write_bytes(b"")
    before = recent.stat().st_mtime
    host.note_use(recent)
    assert recent.stat().st_mtime == before
    host.note_use(aged(old, 2))
    assert time.time() - old.stat().st_mtime < 3600
    host.note_use(tmp_path / "missing")


@pytest.mark.skipif(sys.platform != "linux", reason="/proc tells what the kernel was told")
@pytest.mark.parametrize(("free_bytes", "is_random"), [(8191, True), (8192, False)])
def test_a_file_that_memory_cannot_hold_is_read_without_what_follows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free_bytes: int, *, is_random: bool
) -> None:
    """The kernel reads ahead in a smaller one, which is soon in memory."""
    monkeypatch.setattr(host, "free_memory", lambda: free_bytes)
    path = tmp_path / "tokens.bin"
    path.write_bytes(bytes(8192))
    with path.open("rb") as file:
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    host.expect_random_reads(mapped)
    told = re.search(rf"{re.escape(str(path))}\n.*?VmFlags:(.*?)\n", SMAPS.read_text(), re.DOTALL)
    assert told is not None
    assert ("rr" in told[1].split()) == is_random
