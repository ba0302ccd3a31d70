"""Compressed arrays of a prepared dataset, and this machine's own copies of them."""

import gzip
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from downpour.base.errors import FileCorrupt, FileMissing, StoreError
from downpour.files.store.directory import Mount
from downpour.learning.datasets import array_folder
from downpour.learning.datasets.array_folder import (
    open_array_folder,
    pays,
    write_array_folder,
)

SPARSE = np.zeros((2048, 1024), np.uint8)
SPARSE[:, ::7] = np.arange(2048, dtype=np.uint8)[:, None]
NOISE = np.random.default_rng(0).integers(0, 256, (2048, 1024), np.uint8)
FACTS = {"what": "a test's"}
COPIES = "[0-9a-f]*"


@pytest.fixture(autouse=True)
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of this machine's copies."""
    monkeypatch.setenv("DOWNPOUR_LOCAL", str(tmp_path / "own"))
    return tmp_path / "own" / "arrays"


@pytest.fixture
def key(tmp_path: Path) -> str:
    """A folder of one array that shrinks, one that does not, and a small one."""
    arrays = {"sparse": SPARSE, "noise": NOISE, "small": SPARSE[:2]}
    return write_array_folder(tmp_path, "some", FACTS, arrays)


def test_only_what_shrinks_is_packed(tmp_path: Path, key: str) -> None:
    """Noise and small arrays stay as they are, and all read as they were written."""
    names = sorted(file.name for file in (tmp_path / key).iterdir())
    packed = ["sparse.digests", "sparse.ends", "sparse.npy.gz"]
    assert names == ["facts.json", "noise.npy", "small.npy", *packed]
    with gzip.open(tmp_path / key / "sparse.npy.gz") as file:
        assert (np.load(file) == SPARSE).all(), "any program can unpack it"
    arrays = open_array_folder(tmp_path, key, ("sparse", "noise", "small")).arrays
    assert (arrays["sparse"] == SPARSE).all()
    assert (arrays["noise"] == NOISE).all()
    assert (arrays["small"] == SPARSE[:2]).all()


def test_the_key_says_nothing_of_how_arrays_are_stored(
    tmp_path: Path, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So an experiment goes on with a folder that an earlier version wrote."""
    monkeypatch.setattr(array_folder, "pays", lambda _content: False)
    plain = tmp_path / "plain"
    plain.mkdir()
    arrays = {"sparse": SPARSE, "noise": NOISE, "small": SPARSE[:2]}
    assert write_array_folder(plain, "some", FACTS, arrays) == key
    assert (plain / key / "sparse.npy").exists()
    assert (open_array_folder(plain, key, ("sparse",)).arrays["sparse"] == SPARSE).all()


def test_packing_again_gives_the_same_bytes(tmp_path: Path, key: str) -> None:
    """No time of day is in the file."""
    other = tmp_path / "other"
    other.mkdir()
    write_array_folder(other, "some", FACTS, {"sparse": SPARSE})
    (there,) = other.glob("some-*/sparse.npy.gz")
    assert there.read_bytes() == (tmp_path / key / "sparse.npy.gz").read_bytes()


def test_processes_of_a_machine_share_one_copy(tmp_path: Path, key: str, own: Path) -> None:
    """It is mapped, not read, and the packed file is not read a second time."""
    first = open_array_folder(tmp_path, key, ("sparse",)).arrays["sparse"]
    (copy,) = own.glob(COPIES)
    assert isinstance(first, np.memmap)
    assert Path(str(first.filename)) == copy
    damage(tmp_path / key / "sparse.npy.gz")
    assert (open_array_folder(tmp_path, key, ("sparse",)).arrays["sparse"] == SPARSE).all()
    assert list(own.glob(COPIES)) == [copy]


def test_a_machine_unpacks_the_blocks_that_it_uses_once(tmp_path: Path, key: str) -> None:
    """A block has 128 rows here; the second process finds the two that the first has unpacked."""
    first, second = (
        open_array_folder(tmp_path, key, ("sparse",), by_block=("sparse",)) for _ in range(2)
    )
    first.blocks["sparse"].verify(np.array([0, 300]), 1024)
    (tmp_path / key / "sparse.npy.gz").write_bytes(b"")
    for opened, rows in ((first, [0, 300]), (second, [127, 383])):
        opened.blocks["sparse"].verify(np.array(rows), 1024)
        assert (opened.arrays["sparse"][rows] == SPARSE[rows]).all()
    with pytest.raises(FileCorrupt, match=r"sparse\.npy\.gz: block 1 has changed"):
        second.blocks["sparse"].verify(np.array([128]), 1024)


@pytest.mark.parametrize("kind", ["ext4", "tmpfs"])
def test_blocks_without_room_on_the_disk_stay_in_memory(
    tmp_path: Path, key: str, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """Each process then has its own. In a full tmpfs, to touch the copy ends it (SIGBUS)."""
    monkeypatch.setattr(os, "pwrite", lambda *_: 0)
    found = "downpour.files.store.directory.find_mount"
    monkeypatch.setattr(found, lambda path: Mount(path, kind, ()))
    opened = open_array_folder(tmp_path, key, ("sparse",), by_block=("sparse",))
    if kind == "tmpfs":
        with pytest.raises(StoreError, match=r"own \(DOWNPOUR_LOCAL\): full"):
            opened.blocks["sparse"].verify_all()
    else:
        opened.blocks["sparse"].verify_all()
        assert (opened.arrays["sparse"] == SPARSE).all()


@pytest.mark.skipif(sys.platform != "linux", reason="/proc tells which pages are in use")
def test_a_verified_copy_takes_no_memory(tmp_path: Path, key: str, own: Path) -> None:
    """Of a larger one than memory, each page at random would have the kernel read what follows."""
    opened = open_array_folder(tmp_path, key, ("sparse",))
    (copy,) = own.glob(COPIES)
    maps = Path("/proc/self/smaps").read_text()
    assert re.findall(rf"{re.escape(str(copy))}\n.*?Rss:\s+(\d+)", maps, re.DOTALL) == ["0"]
    assert (opened.arrays["sparse"] == SPARSE).all()


HOLDER = """
import fcntl, sys
with open(sys.argv[1], "r+b") as copy:
    fcntl.lockf(copy, fcntl.LOCK_EX, 2**17, 2**17)
    print("held", flush=True)
    sys.stdin.read()
"""


def test_processes_wait_for_each_others_blocks_and_no_others(
    tmp_path: Path, key: str, own: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And at most a minute, as one that holds a block may stand still."""
    waits: list[float] = []
    monkeypatch.setattr(time, "sleep", waits.append)
    opened = open_array_folder(tmp_path, key, ("sparse",), by_block=("sparse",))
    (copy,) = own.glob(COPIES)
    command, pipe = [sys.executable, "-c", HOLDER, str(copy)], subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        for row, seconds in ((0, 0.0), (128, 60.0)):
            opened.blocks["sparse"].verify(np.array([row]), 1024)
            assert sum(waits) == pytest.approx(seconds)
            assert (opened.arrays["sparse"][row] == SPARSE[row]).all()
        holder.kill()


@pytest.mark.parametrize("kept", [0, 100, -1])
def test_a_copy_that_has_changed_is_made_again(
    tmp_path: Path, key: str, own: Path, kept: int
) -> None:
    """Whether it was emptied, cut short or altered."""
    open_array_folder(tmp_path, key, ("sparse",))
    (copy,) = own.glob(COPIES)
    content = copy.read_bytes()
    copy.unlink()
    copy.write_bytes(content[:kept] + (b"?" if kept == -1 else b""))
    assert (open_array_folder(tmp_path, key, ("sparse",)).arrays["sparse"] == SPARSE).all()
    assert copy.read_bytes() == content


def damage(file: Path) -> None:
    """Change a byte in the middle of a file."""
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


def cut(file: Path) -> None:
    """Cut a file in half."""
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


def other_content(file: Path) -> None:
    """Pack another array of the same shape."""
    with gzip.open(file, "wb") as content:
        np.save(content, SPARSE[::-1])


def bomb(file: Path) -> None:
    """Pack much more than was there."""
    with gzip.open(file, "wb") as content:
        for _ in range(64):
            content.write(bytes(2**20))


def not_packed(file: Path) -> None:
    """Write a plain text under the name."""
    file.write_text("no gzip at all")


def other_ends(file: Path) -> None:
    """Have all blocks end at the beginning."""
    ends = file.with_name("sparse.ends")
    ends.write_bytes(bytes(ends.stat().st_size))


@pytest.mark.parametrize("altered", [damage, cut, other_content, bomb, not_packed, other_ends])
def test_a_packed_file_that_has_changed_is_corrupt(
    tmp_path: Path, key: str, own: Path, altered: Callable[[Path], None]
) -> None:
    """Its name is in the error; nothing larger than the array is ever unpacked."""
    altered(tmp_path / key / "sparse.npy.gz")
    with pytest.raises(FileCorrupt, match=r"sparse\.npy\.gz"):
        open_array_folder(tmp_path, key, ("sparse",))
    assert sum(file.stat().st_size for file in own.iterdir()) < 2 * SPARSE.nbytes


def test_a_file_that_an_earlier_version_packed_is_packed_again(tmp_path: Path, key: str) -> None:
    """As if it were missing, because its blocks cannot be unpacked alone."""
    (tmp_path / key / "sparse.ends").unlink()
    with pytest.raises(FileMissing, match=r"sparse\.ends"):
        open_array_folder(tmp_path, key, ("sparse",))
    arrays = {"sparse": SPARSE, "noise": NOISE, "small": SPARSE[:2]}
    assert write_array_folder(tmp_path, "some", FACTS, arrays) == key
    open_array_folder(tmp_path, key, ("sparse",))


def test_a_machine_without_room_reads_into_memory(
    tmp_path: Path, key: str, own: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A folder that cannot be made is no reason to stop; the log says so."""
    own.parent.write_text("a file has the folder's name")
    arrays = open_array_folder(tmp_path, key, ("sparse",)).arrays
    assert (arrays["sparse"] == SPARSE).all()
    assert "no copy on this machine" in caplog.text
    damage(tmp_path / key / "sparse.npy.gz")
    with pytest.raises(FileCorrupt):
        open_array_folder(tmp_path, key, ("sparse",))


def test_copies_that_nobody_uses_are_removed(tmp_path: Path, key: str, own: Path) -> None:
    """After a month without use, when another copy is made."""
    own.mkdir(parents=True)
    old, recent = own / f"{'0' * 32}.npy", own / f"{'1' * 32}.npy"
    for file, days in ((old, 31), (recent, 29)):
        file.write_bytes(b"")
        os.utime(file, (0, time.time() - days * 86_400))
    open_array_folder(tmp_path, key, ("sparse",))
    assert not old.exists()
    assert recent.exists()


def test_a_use_keeps_a_copy(tmp_path: Path, key: str, own: Path) -> None:
    """Opening it counts as a use, once a day."""
    open_array_folder(tmp_path, key, ("sparse",))
    (copy,) = own.glob(COPIES)
    os.utime(copy, (0, time.time() - 20 * 86_400))
    open_array_folder(tmp_path, key, ("sparse",))
    assert time.time() - copy.stat().st_mtime < 3600


def test_a_mixture_is_judged_by_all_of_it() -> None:
    """Samples come from everywhere, so an empty beginning does not decide."""
    assert pays(SPARSE.reshape(-1))
    assert not pays(NOISE.reshape(-1))
    mixed = np.concatenate([SPARSE.reshape(-1)[: 2**18], NOISE.reshape(-1)])
    assert not pays(mixed)
