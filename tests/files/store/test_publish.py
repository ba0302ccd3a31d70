"""A file appears whole or not at all."""

import errno
import os
import threading
from pathlib import Path

import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from downpour.base.errors import SharedDirectoryError, StoreError
from downpour.files.store import Buffer
from downpour.files.store import publish as publishing
from downpour.files.store.directory import names_in
from downpour.files.store.publish import RetryPolicy, publish

from .conftest import away_for


def test_content_longer_than_a_block_arrives_whole(tmp_path: Path) -> None:
    """Blocks are cut and gathered anew, whatever the chunks' sizes."""
    chunks: list[Buffer] = [b"head", bytes(range(256)) * 9000, b"", memoryview(b"tail" * 300_000)]
    file = publish(tmp_path, "big", chunks)
    whole = b"".join(bytes(chunk) for chunk in chunks)
    assert (tmp_path / "big").read_bytes() == whole
    assert file.size_bytes == len(whole)
    assert file.checksum == xxhash.xxh3_128_hexdigest(whole)


@given(sizes=st.lists(st.integers(0, 40), max_size=30), block_bytes=st.integers(1, 50))
def test_blocks_begin_at_multiples_of_their_size(sizes: list[int], block_bytes: int) -> None:
    """Every block but the last is full, and together they are the chunks."""
    chunks = [bytes([index % 256]) * size for index, size in enumerate(sizes)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(publishing, "_BLOCK_BYTES", block_bytes)
        blocks = [b"".join(pieces) for pieces in publishing._blocks(chunks)]
    assert b"".join(blocks) == b"".join(chunks)
    assert all(len(block) == block_bytes for block in blocks[:-1])
    assert all(0 < len(block) <= block_bytes for block in blocks)


def test_more_pieces_than_one_write_takes(tmp_path: Path) -> None:
    """Thousands of tiny chunks are gathered into several writes."""
    publish(tmp_path, "many", [b"xy"] * 5000)
    assert (tmp_path / "many").read_bytes() == b"xy" * 5000


def test_a_long_file_is_durable_in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The worker counts each part once it is synced, and no earlier."""
    monkeypatch.setattr(publishing, "_BLOCK_BYTES", 10)
    monkeypatch.setattr(publishing, "_SYNC_BYTES", 30)
    heard: list[int | str] = []
    sync = os.fsync

    def synced(descriptor: int) -> None:
        heard.append("synced")
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", synced)
    publish(tmp_path, "long", [bytes(75)], moved=heard.append)
    assert heard == ["synced", 30, "synced", 30, "synced", 15, "synced"], "the last is the folder"


def test_a_write_that_takes_a_part_is_continued(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file system may take fewer bytes than offered."""
    gather = os.writev
    monkeypatch.setattr(os, "writev", lambda fd, pieces: gather(fd, [pieces[0][:3]]))
    publish(tmp_path, "slow", [b"one", b"two and three", b"four"])
    assert (tmp_path / "slow").read_bytes() == b"onetwo and threefour"


def test_nothing_hidden_stays(tmp_path: Path) -> None:
    """Neither success nor refusal leaves a temporary name."""
    publish(tmp_path, "a", [b"x"])
    with pytest.raises(StoreError, match="never reuses"):
        publish(tmp_path, "a", [b"y"])
    assert names_in(tmp_path) == ["a"]
    assert (tmp_path / "a").read_bytes() == b"x"


def test_of_many_that_publish_one_name_one_succeeds(tmp_path: Path) -> None:
    """Linking is atomic: the others are refused and nothing is overwritten."""
    start = threading.Barrier(8)
    outcomes: list[str] = []

    def race(number: int) -> None:
        start.wait()
        try:
            publish(tmp_path, "contested", [b"%d" % number])
            outcomes.append(str(number))
        except StoreError:
            outcomes.append("refused")

    threads = [threading.Thread(target=race, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert outcomes.count("refused") == 7
    winner = next(outcome for outcome in outcomes if outcome != "refused")
    assert (tmp_path / "contested").read_text() == winner


def test_without_hard_links_it_renames_and_still_overwrites_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file system that knows no links serves as well."""

    def no_links(*_: object) -> None:
        raise OSError(errno.EOPNOTSUPP, "no hard links here")

    monkeypatch.setattr(os, "link", no_links)
    publish(tmp_path, "a", [b"x"])
    with pytest.raises(StoreError, match="never reuses"):
        publish(tmp_path, "a", [b"y"])
    assert names_in(tmp_path) == ["a"]


def test_a_link_that_was_made_although_it_was_denied_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A repeated NFS request answers "exists" for the name that the first one made."""
    link = os.link

    def answered_late(source: Path, target: Path) -> None:
        link(source, target)
        link(source, target)

    monkeypatch.setattr(os, "link", answered_late)
    file = publish(tmp_path, "a", [b"x"])
    assert file.size_bytes == 1
    assert names_in(tmp_path) == ["a"]


@pytest.mark.parametrize(
    ("number", "kind", "told"),
    [
        (errno.ENOSPC, SharedDirectoryError, "full"),
        (errno.EDQUOT, SharedDirectoryError, "full"),
        (errno.EIO, SharedDirectoryError, "Input/output error"),
        (errno.EFBIG, StoreError, "a: cannot be written: File too large"),
    ],
)
def test_a_failed_fsync_is_told_and_publishes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, kind: type[StoreError], told: str
) -> None:
    """What is not durable gets no name."""

    def fails(_descriptor: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", fails)
    with pytest.raises(kind, match=told):
        publish(tmp_path, "a", [b"x"])
    assert names_in(tmp_path) == []


def test_a_directory_that_is_not_there(tmp_path: Path) -> None:
    """The error names the folder, not the hidden file."""
    with pytest.raises(SharedDirectoryError, match="gone: no such folder"):
        publish(tmp_path / "gone", "a", [b"x"])


@pytest.mark.parametrize("done", [True, False])
@pytest.mark.parametrize("name", ["open", "writev", "fsync", "link"])
def test_a_server_that_is_away_for_a_moment_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, *, done: bool
) -> None:
    """Whichever step it refuses, and whether it was carried out: one whole file comes of it."""
    slept: list[float] = []
    monkeypatch.setattr(os, name, away_for(3, getattr(os, name), done=done))
    file = publish(
        tmp_path, "a", [b"one", b"two"], retry_policy=RetryPolicy(seconds=9, sleep=slept.append)
    )
    monkeypatch.undo()
    assert (tmp_path / "a").read_bytes() == b"onetwo"
    assert file.checksum == xxhash.xxh3_128_hexdigest(b"onetwo")
    assert len(slept) == (1 if done and name == "link" else 3)
    assert names_in(tmp_path) == ["a"]


def test_patience_with_a_server_that_stays_away_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One line says so, and nothing is published."""
    slept: list[float] = []
    monkeypatch.setattr(os, "link", away_for(10**9, os.link))
    with pytest.raises(SharedDirectoryError, match="Input/output error"):
        publish(tmp_path, "a", [b"x"], retry_policy=RetryPolicy(seconds=3, sleep=slept.append))
    assert 3 <= sum(slept) <= 4
    assert names_in(tmp_path) == []


def test_a_full_disk_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may get room; what was written of the file meanwhile takes none."""
    write = os.writev
    names: list[list[str]] = []

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def until_there_is_room(_seconds: float) -> None:
        names.append(names_in(tmp_path))
        if len(names) == 3:
            monkeypatch.setattr(os, "writev", write)

    monkeypatch.setattr(os, "writev", full)
    with pytest.raises(SharedDirectoryError, match=r"full \(No space left on device\)"):
        publish(tmp_path, "a", [b"x"])
    publish(tmp_path, "a", [b"x"], retry_policy=RetryPolicy(seconds=9, sleep=until_there_is_room))
    assert names == [[], [], []]
    assert names_in(tmp_path) == ["a"]


def test_a_file_in_a_replaced_folder_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its name will never be there, so it is not waited for."""
    folder = tmp_path / "folder"
    folder.mkdir()
    sync = os.fsync

    def replaced(descriptor: int) -> None:
        sync(descriptor)
        folder.rename(tmp_path / "former")
        folder.mkdir()

    monkeypatch.setattr(os, "fsync", replaced)
    never = RetryPolicy(seconds=9, sleep=lambda _: pytest.fail("waited"))
    with pytest.raises(StoreError, match="a: its temporary file has vanished"):
        publish(folder, "a", [b"x"], retry_policy=never)
