"""How a folder is mounted, and how often a look at it is repeated, without ever sleeping."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from downpour.base.errors import FileMissing, SharedDirectoryError, StoreError
from downpour.files.store.directory import Mount, find_mount, innermost
from downpour.files.store.publish import RetryPolicy


def looks_until(succeeds_at: int) -> tuple[Callable[[], str], list[int]]:
    """Return a look that fails until its call of that number, and the list of its calls."""
    calls: list[int] = []

    def look() -> str:
        calls.append(len(calls) + 1)
        if len(calls) < succeeds_at:
            raise FileMissing("file")
        return "seen"

    return look, calls


def test_a_success_or_no_patience_is_one_look() -> None:
    """Patience costs nothing without need; without any, the first error stands."""
    slept: list[float] = []
    look, calls = looks_until(1)
    assert RetryPolicy(seconds=9, sleep=slept.append).call(look) == "seen"
    assert (calls, slept) == ([1], [])
    look, calls = looks_until(2)
    with pytest.raises(FileMissing):
        RetryPolicy(seconds=0).call(look)
    assert calls == [1]


def test_the_second_look_comes_at_once_and_later_ones_rarely() -> None:
    """Waits grow from milliseconds to one second."""
    slept: list[float] = []
    look, _ = looks_until(13)
    RetryPolicy(seconds=60, sleep=slept.append).call(look)
    assert slept[0] < 0.01
    assert slept == sorted(slept)
    assert slept[-1] == 1.0


def test_other_errors_are_not_waited_for() -> None:
    """Only what a network file system may cure is repeated."""

    def broken() -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        RetryPolicy(seconds=9, sleep=lambda _: pytest.fail("slept")).call(broken)


def test_with_the_directory_there_may_be_another_patience_than_with_a_file() -> None:
    """One that is away is waited for as long as that says, and a file that is missing is not."""

    def away() -> None:
        raise SharedDirectoryError("shared", "is away")

    def missing() -> None:
        raise FileMissing("file")

    for act, at_least in ((away, 9), (missing, 3)):
        slept: list[float] = []
        with pytest.raises(StoreError):
            RetryPolicy(seconds=3, away_seconds=9, sleep=slept.append).call(act)
        assert at_least <= sum(slept) <= at_least + 1


def test_insisting_callers_wait_for_the_directory_alone() -> None:
    """What a file's own error leads to does not change by waiting."""
    look, calls = looks_until(2)
    with pytest.raises(FileMissing):
        RetryPolicy(seconds=9, sleep=lambda _: pytest.fail("slept")).call_through_outage(look)
    assert calls == [1]


def test_a_directory_that_stays_away_is_told_of_once(caplog: pytest.LogCaptureFixture) -> None:
    """Whoever looks at the log sees what is waited for."""

    def away() -> None:
        raise SharedDirectoryError("shared", "is away")

    with pytest.raises(SharedDirectoryError):
        RetryPolicy(seconds=60, sleep=lambda _: None).call_through_outage(away)
    assert [record.message for record in caplog.records] == [
        "waiting for the shared directory: shared directory shared: is away"
    ]


MOUNTS = [
    Mount(Path(point), kind, tuple(options.split(",")))
    for point, kind, options in (
        ("/", "ext4", "rw,relatime,discard"),
        ("/mnt", "tmpfs", "rw"),
        ("/mnt/lab share", "nfs4", "rw,relatime,vers=4.1,soft,local_lock=none"),
        ("/mnt/old", "nfs", "rw,relatime,vers=3,hard,nolock,local_lock=all"),
        ("/mnt/huge", "tmpfs", "rw,size=4g,huge=within_size"),
        ("/mnt/small", "tmpfs", "rw,huge=never"),
        ("/mnt/ssh", "fuse.sshfs", "rw"),
        ("/", "overlay", "rw,lowerdir=/a"),
    )
]


def test_the_innermost_mount_counts_and_later_ones_cover_earlier_ones() -> None:
    """A name that only begins alike is another folder."""
    share = innermost(MOUNTS, Path("/mnt/lab share/here"))
    assert share is not None
    assert (share.kind, share.point, share.is_network) == ("nfs4", Path("/mnt/lab share"), True)
    beside = innermost(MOUNTS, Path("/mnt/lab share too"))
    assert beside is not None
    assert (beside.kind, beside.is_network) == ("tmpfs", False)
    there = innermost(MOUNTS, Path("/mnt/ssh"))
    assert there is not None
    assert there.is_network, "what a program serves may come from anywhere"
    outside = innermost(MOUNTS, Path("/srv"))
    assert outside is not None
    assert outside.kind == "overlay"
    assert innermost([], Path("/srv")) is None


def test_options_that_weaken_files_are_named() -> None:
    """Those of the mount, exactly; `local_lock=none` is none of them."""
    soft, old = innermost(MOUNTS, Path("/mnt/lab share")), innermost(MOUNTS, Path("/mnt/old"))
    assert soft is not None
    assert old is not None
    assert list(soft.doubtful) == ["soft"]
    assert list(old.doubtful) == ["nolock", "local_lock=all"]


@pytest.mark.parametrize(
    ("folder", "small"), [("/mnt", True), ("/mnt/small", True), ("/mnt/huge", False), ("/", False)]
)
def test_memory_in_small_pages_is_known(folder: str, *, small: bool) -> None:
    """As it is mounted by default; what lies on a disk has the pages that its cache likes."""
    mount = innermost(MOUNTS, Path(folder))
    assert mount is not None
    assert mount.is_in_small_pages is small


def test_this_machine_tells_of_its_root() -> None:
    """A folder of it is served by some mount."""
    mount = find_mount(Path("/"))
    assert mount is not None
    assert mount.point == Path("/")
