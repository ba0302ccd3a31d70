"""Finding out how a folder is mounted."""

from __future__ import annotations

from pathlib import Path

import pytest

from downpour.files.store.directory import find_mount, innermost

LINES = """\
27 1 254:0 / / rw,relatime - ext4 /dev/vda rw,discard
30 27 0:25 / /mnt rw - tmpfs t rw
31 30 0:99 / /mnt/lab\\040share rw,relatime shared:7 - nfs4 host:/s rw,vers=4.1,soft,local_lock=none
32 30 0:98 / /mnt/old rw,relatime - nfs host:/s rw,vers=3,hard,nolock,local_lock=all
35 27 0:95 / /mnt/huge rw - tmpfs t rw,size=4g,huge=within_size
36 27 0:94 / /mnt/small rw - tmpfs t rw,huge=never
34 27 0:96 / /mnt/ssh rw - fuse.sshfs host:/s rw
33 27 0:97 / / rw - overlay overlay rw,lowerdir=/a
a line that is none
""".splitlines()


def test_the_innermost_mount_counts_and_later_ones_cover_earlier_ones() -> None:
    """A name that only begins alike is another folder."""
    share = innermost(LINES, Path("/mnt/lab share/here"))
    assert share is not None
    assert (share.kind, share.point, share.is_network) == ("nfs4", Path("/mnt/lab share"), True)
    beside = innermost(LINES, Path("/mnt/lab share too"))
    assert beside is not None
    assert (beside.kind, beside.is_network) == ("tmpfs", False)
    there = innermost(LINES, Path("/mnt/ssh"))
    assert there is not None
    assert there.is_network, "what a program serves may come from anywhere"
    outside = innermost(LINES, Path("/srv"))
    assert outside is not None
    assert outside.kind == "overlay"
    assert innermost([], Path("/srv")) is None


def test_options_that_weaken_files_are_named() -> None:
    """Those of the mount, exactly; `local_lock=none` is none of them."""
    soft, old = innermost(LINES, Path("/mnt/lab share")), innermost(LINES, Path("/mnt/old"))
    assert soft is not None
    assert old is not None
    assert list(soft.doubtful) == ["soft"]
    assert list(old.doubtful) == ["nolock", "local_lock=all"]


@pytest.mark.parametrize(
    ("folder", "small"), [("/mnt", True), ("/mnt/small", True), ("/mnt/huge", False), ("/", False)]
)
def test_memory_in_small_pages_is_known(folder: str, *, small: bool) -> None:
    """As it is mounted by default; what lies on a disk has the pages that its cache likes."""
    mount = innermost(LINES, Path(folder))
    assert mount is not None
    assert mount.is_in_small_pages is small


def test_a_system_that_does_not_tell(tmp_path: Path) -> None:
    """Where no such file, nothing is known."""
    assert find_mount(tmp_path, tmp_path / "no-mountinfo") is None
