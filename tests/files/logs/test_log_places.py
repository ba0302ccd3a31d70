"""Where logs are kept: a folder and an object store keep one contract."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from downpour.base.errors import SharedDirectoryError
from downpour.files.logs.log_places import (
    FOLDER,
    KEPT_BYTES,
    KEPT_SECONDS,
    FolderLogs,
    LogPlace,
    logs_of,
    remove_old_logs,
)
from downpour.files.store import SharedDirectory
from downpour.files.store.shared_directory import seen_location
from tests.files.objects.cloud import URL, Cloud
from tests.files.objects.conftest import cloud

__all__ = ["cloud"]

NAME = "h-worker-1-7-000000.jsonl"


@pytest.fixture(params=["folder", "bucket"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> LogPlace:
    """A place without logs."""
    if request.param == "folder":
        return logs_of(SharedDirectory.open(tmp_path, create=True))
    request.getfixturevalue("cloud")
    return logs_of(seen_location(URL))


def test_a_piece_grows_and_is_read_from_where_a_reader_was(place: LogPlace) -> None:
    """Sizes are those of the bytes, and a place without any log is just empty."""
    assert place.pieces() == []
    assert place.append(NAME, b"one\n") == 4
    assert place.append(NAME, b"two\n") == 4
    [piece] = place.pieces()
    assert (piece.name, piece.size_bytes) == (NAME, 8)
    assert place.read(NAME, 4) == b"two\n"
    place.remove(NAME)
    assert place.pieces() == []
    assert place.read(NAME, 0) == b""
    place.remove(NAME)


def test_pieces_of_two_processes_stay_apart(place: LogPlace) -> None:
    """A process goes on with its own after another one has written."""
    place.append(NAME, b"one\n")
    place.append("other-000000.jsonl", b"1\n")
    assert [(one.name, one.size_bytes) for one in place.pieces()] == [
        (NAME, 4),
        ("other-000000.jsonl", 2),
    ]


def test_only_regular_files_are_read(tmp_path: Path) -> None:
    """A FIFO would be waited for, and a link may lead to what a reader's user alone may see."""
    place = FolderLogs(tmp_path)
    secret = tmp_path / "secret"
    secret.write_text("mine")
    (tmp_path / "link.jsonl").symlink_to(secret)
    os.mkfifo(tmp_path / "fifo.jsonl")
    (tmp_path / "folder.jsonl").mkdir()
    assert place.pieces() == []
    assert place.read("link.jsonl", 0) == b""
    assert place.read("fifo.jsonl", 0) == b""
    with pytest.raises(SharedDirectoryError):
        place.append("link.jsonl", b"x")


def test_a_folder_that_cannot_be_used_is_an_error_of_the_directory(tmp_path: Path) -> None:
    """A file lies where the folder should."""
    (tmp_path / "logs").write_text("")
    place = FolderLogs(tmp_path / "logs" / "processes")
    for use in (place.pieces, lambda: place.append(NAME, b"x")):
        with pytest.raises(SharedDirectoryError):
            use()


def test_a_folder_that_is_away_is_not_made_anew(tmp_path: Path) -> None:
    """What a process wrote below the point of a missing mount, nobody would ever find."""
    place = FolderLogs(tmp_path / "mount" / FOLDER)
    with pytest.raises(SharedDirectoryError, match="no such folder"):
        place.append(NAME, b"one\n")
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def aged(tmp_path: Path) -> Callable[[str, float, int], None]:
    """Make a log of an age in seconds, and of a size."""

    def make(name: str, age_seconds: float, size_bytes: int) -> None:
        path = tmp_path / FOLDER / f"{name}.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("wb") as file:
            file.truncate(size_bytes)
        os.utime(path, (1e9 - age_seconds, 1e9 - age_seconds))

    return make


def test_old_logs_go_and_the_oldest_of_too_many(
    tmp_path: Path, aged: Callable[[str, float, int], None]
) -> None:
    """Age counts from the last line; other files of the folder stay."""
    aged("new", 10, 100)
    aged("large", 20, KEPT_BYTES - 200)
    aged("too-much", 30, 200)
    aged("forgotten", KEPT_SECONDS + 1, 10)
    (tmp_path / FOLDER / "notes.txt").write_text("mine")
    remove_old_logs(logs_of(seen_location(tmp_path)), 1e9)
    left = {path.name for path in (tmp_path / FOLDER).iterdir()}
    assert left == {"new.jsonl", "large.jsonl", "notes.txt"}


def test_old_logs_of_an_object_store_go_as_well(cloud: Cloud) -> None:
    """Two weeks after their last line."""
    place = logs_of(cloud.on("manager", create=True))
    place.append(NAME, b"one\n")
    [piece] = place.pieces()
    remove_old_logs(place, piece.changed_seconds + KEPT_SECONDS - 1)
    assert place.pieces() == [piece]
    remove_old_logs(place, piece.changed_seconds + KEPT_SECONDS + 1)
    assert place.pieces() == []
