"""Finding out how a folder is mounted."""

from __future__ import annotations

from pathlib import Path

import pytest

from downpour.files.store.directory import Mount, find_mount, innermost

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
