"""Each probe sees what it looks for; what a file system lacks is played by its errors."""

import errno
import fcntl
import os
import shutil
import stat
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest

from downpour.cluster import probes
from downpour.cluster.probes import Verdict

Patch = pytest.MonkeyPatch


def failing(number: int) -> Callable[..., NoReturn]:
    """Return a system call that fails with an error of that number."""

    def fails(*_: object, **__: object) -> NoReturn:
        raise OSError(number, os.strerror(number))

    return fails


@pytest.mark.parametrize(
    "probe",
    [probes.publishing, probes.syncing, probes.locking, probes.space, probes.clock, probes.speed],
)
def test_a_local_folder_passes(probe: Callable[[Path], Any], tmp_path: Path) -> None:
    """Every probe is content with the file system that the tests run on."""
    found = probe(tmp_path)
    assert (found.verdict, found.change) == (Verdict.GOOD, "")


def test_without_hard_links_publishing_is_weaker(tmp_path: Path, monkeypatch: Patch) -> None:
    """It works, and it is said what it rests on."""
    monkeypatch.setattr(os, "link", failing(errno.EOPNOTSUPP))
    found = probes.publishing(tmp_path)
    assert found.verdict is Verdict.WARNING
    assert "no hard links" in found.seen


def test_a_file_system_that_overwrites_is_refused(tmp_path: Path, monkeypatch: Patch) -> None:
    """Neither a file nor a folder may take the place of another one."""
    with monkeypatch.context() as patch:
        patch.setattr(os, "link", shutil.copyfile)
        assert "one name to two files" in probes.publishing(tmp_path).seen
    shutil.rmtree(tmp_path)
    tmp_path.mkdir()

    def over(source: Path, target: Path) -> None:
        shutil.rmtree(target)
        shutil.move(source, target)

    monkeypatch.setattr(Path, "rename", over)
    found = probes.publishing(tmp_path)
    assert (found.verdict, found.seen) == (
        Verdict.FAILED,
        "the file system renamed a folder over another one",
    )


def test_names_that_cannot_be_synced_are_a_warning(tmp_path: Path, monkeypatch: Patch) -> None:
    """Some network file systems sync files alone."""
    sync = os.fsync

    def files_only(descriptor: int) -> None:
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            failing(errno.EINVAL)()
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", files_only)
    assert probes.syncing(tmp_path).verdict is Verdict.WARNING


def test_locks_that_do_not_exclude_are_found(tmp_path: Path, monkeypatch: Patch) -> None:
    """A second process that gets the lock as well has proven it."""
    monkeypatch.setattr(fcntl, "flock", lambda *_: None)
    assert probes.locking(tmp_path).seen == "two processes held the same lock"


def test_locks_that_stay_with_the_dead_are_found(tmp_path: Path, monkeypatch: Patch) -> None:
    """It is waited for some time, then told what it means."""
    monkeypatch.setattr(fcntl, "flock", failing(errno.EWOULDBLOCK))
    monkeypatch.setattr(probes, "RELEASE_SECONDS", 0.0)
    found = probes.locking(tmp_path)
    assert found.verdict is Verdict.WARNING
    assert "after the holder died" in found.seen


def test_locks_that_cannot_be_had_are_found(tmp_path: Path, monkeypatch: Patch) -> None:
    """The process that should hold one says nothing."""
    monkeypatch.setattr(probes, "_HOLDER", "raise SystemExit(1)")
    found = probes.locking(tmp_path)
    assert (found.verdict, found.seen) == (Verdict.FAILED, "cannot be taken")


def test_the_holder_of_the_lock_ends_with_the_probe(tmp_path: Path, monkeypatch: Patch) -> None:
    """Also where Ctrl-C comes while it holds."""
    holders: list[subprocess.Popen[bytes]] = []
    start = probes._holder

    def noted(path: Path) -> subprocess.Popen[bytes]:
        holders.append(start(path))
        return holders[-1]

    def interrupted(_: object) -> NoReturn:
        raise KeyboardInterrupt

    monkeypatch.setattr(probes, "_holder", noted)
    monkeypatch.setattr(probes, "_taken", interrupted)
    with pytest.raises(KeyboardInterrupt):
        probes.locking(tmp_path)
    assert holders[0].wait(10) == 0


@pytest.mark.parametrize(
    ("free_bytes", "names", "verdict"),
    [
        (2**40, 5, Verdict.GOOD),
        (2**28, 5, Verdict.WARNING),
        (2**20, 5, Verdict.FAILED),
        (2**40, 0, Verdict.FAILED),
    ],
)
def test_little_room_is_a_warning_and_none_a_failure(
    tmp_path: Path, monkeypatch: Patch, free_bytes: int, names: int, verdict: Verdict
) -> None:
    """Bytes count, and so does the number of files that a file system can hold."""
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=free_bytes))
    monkeypatch.setattr(os, "statvfs", lambda _: SimpleNamespace(f_files=9, f_favail=names))
    assert probes.space(tmp_path).verdict is verdict


@pytest.mark.parametrize(
    ("shift_seconds", "said"), [(-60, "60.0 s behind"), (60, "60.0 s ahead"), (0.5, "agrees")]
)
def test_a_clock_that_is_off_is_a_warning(
    tmp_path: Path, monkeypatch: Patch, shift_seconds: float, said: str
) -> None:
    """By seconds, in either direction; what a file system rounds does not count."""
    now = time.time
    monkeypatch.setattr(time, "time", lambda: now() - shift_seconds)
    found = probes.clock(tmp_path)
    assert said in found.seen
    assert found.verdict is (Verdict.GOOD if said == "agrees" else Verdict.WARNING)


def test_slow_publishing_is_a_warning_with_its_figures(tmp_path: Path, monkeypatch: Patch) -> None:
    """Whatever the threshold, the figures tell."""
    monkeypatch.setattr(probes, "PUBLISH_WARN_MS", 0.0)
    found = probes.speed(tmp_path)
    assert found.verdict is Verdict.WARNING
    assert set(found.figures) == {"publish_ms", "stat_ms", "write_mb_per_second"}
