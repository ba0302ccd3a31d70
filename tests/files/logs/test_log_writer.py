"""A process's log: its lines, the thread that writes them, and where they are kept."""

import math
import os
import time
from collections.abc import Callable
from pathlib import Path
from threading import Event

import pytest
from hypothesis import given
from hypothesis import strategies as st

from downpour.base.errors import SharedDirectoryError
from downpour.files.log_places import (
    FOLDER,
    KEPT_BYTES,
    KEPT_SECONDS,
    PIECE_BYTES_MAX,
    TEXT_CHARACTERS_MAX,
    TRACE_CHARACTERS_MAX,
    FolderLogs,
    LogLine,
    LogPlace,
    Piece,
    logs_of,
    remove_old_logs,
)
from downpour.files.process_log import PIECES_KEPT, QUEUE_BYTES_MAX, LogWriter
from downpour.files.store import SharedDirectory
from downpour.files.store.shared_directory import seen_location
from tests.files.objects.cloud import URL, Cloud
from tests.files.objects.conftest import cloud


class Memory:
    """A place in memory that takes `takes` bytes of each write, or fails while that is None."""

    interval_seconds = 0.01

    def __init__(self) -> None:
        self.content: dict[str, bytes] = {}
        self.takes: int | None = 1 << 30

    def append(self, name: str, gained: bytes) -> int:
        if self.takes is None:
            raise SharedDirectoryError("memory", "is full")
        taken = gained[: self.takes]
        self.content[name] = self.content.get(name, b"") + taken
        return len(taken)

    def pieces(self) -> list[Piece]:
        return [Piece(name, len(held), 0.0) for name, held in self.content.items()]

    def read(self, name: str, begin: int) -> bytes:
        return self.content[name][begin:]

    def remove(self, name: str) -> None:
        del self.content[name]

    @property
    def whole(self) -> bytes:
        return b"".join(self.content[name] for name in sorted(self.content))


class Stuck(Memory):
    """A place whose folder is on a server that does not answer."""

    def __init__(self) -> None:
        super().__init__()
        self.called, self.answers = Event(), Event()

    def append(self, name: str, gained: bytes) -> int:
        self.called.set()
        self.answers.wait()
        return super().append(name, gained)


def test_lines_reach_the_place_in_order_and_the_last_ones_too() -> None:
    """Closing writes what is queued."""
    place = Memory()
    writer = LogWriter(place, "h-worker-1-7")
    writer.start()
    lines = [b"%d\n" % number for number in range(100)]
    assert all(writer.put(line) for line in lines)
    writer.close()
    assert place.whole == b"".join(lines)
    assert [name[:13] for name in place.content] == ["h-worker-1-7-"]


def test_a_process_that_logs_in_a_loop_keeps_its_last_lines_in_bounded_space() -> None:
    """Whatever it logs, its pieces are few and small, and no line is cut."""
    place = Memory()
    writer = LogWriter(place, "loop")
    for turn in range(40):
        while writer.put(b"%06d %s\n" % (turn, b"x" * 1000)):
            pass
        writer.write()
    assert len(place.content) == PIECES_KEPT
    assert all(len(held) <= PIECE_BYTES_MAX for held in place.content.values())
    assert {len(line) for line in place.whole.splitlines()} == {1007}
    assert place.whole.splitlines()[-1].startswith(b"000039 ")


def test_a_full_queue_takes_nothing_and_takes_more_once_it_was_written() -> None:
    """A line that is refused is lost; memory stays bounded."""
    place = Memory()
    writer = LogWriter(place, "full")
    assert writer.put(b"x" * QUEUE_BYTES_MAX)
    assert not writer.put(b"y")
    writer.write()
    assert writer.put(b"z\n")


def test_a_folder_that_is_full_for_a_while_loses_no_line() -> None:
    """What was cut off goes on where it ended, in the same piece."""
    place = Memory()
    writer = LogWriter(place, "disk")
    writer.put(b"first\n")
    place.takes = None
    writer.write()
    writer.put(b"second\n")
    place.takes = 3
    writer.write()
    assert place.whole == b"first\nsecond\n"
    assert len(place.content) == 1


@pytest.mark.slow
def test_nobody_waits_for_a_folder_that_does_not_answer() -> None:
    """Neither who logs nor, for longer than two seconds, who ends."""
    place = Stuck()
    writer = LogWriter(place, "stuck")
    writer.start()
    writer.put(b"a\n")
    place.called.wait()
    began = time.monotonic()
    assert writer.put(b"b\n")
    assert time.monotonic() - began < 1.0
    writer.close()
    assert time.monotonic() - began < 30.0
    place.answers.set()


def test_any_owner_has_a_file_and_no_two_share_one(tmp_path: Path) -> None:
    """A name with slashes stays inside the folder; the same name twice gives two pieces."""
    (tmp_path / "logs").mkdir()
    place = FolderLogs(tmp_path / "logs")
    for owner in ("../../x", "../../x", "a b/ä", "", "w" * 300):
        writer = LogWriter(place, owner)
        writer.put(b"{}\n")
        writer.write()
    assert len(list((tmp_path / "logs").iterdir())) == 5
    assert [path.name for path in tmp_path.iterdir()] == ["logs"]


def line(text: str = "hello", trace: str = "", at: float = 1.5) -> LogLine:
    """Make a line."""
    return LogLine(
        at=at, host="h", name="worker-1", pid=7, level="error", source="s", text=text, trace=trace
    )


@given(st.text(max_size=200), st.text(max_size=200))
def test_any_text_is_one_line_and_comes_back(text: str, trace: str) -> None:
    """Line breaks and control characters too; half of a surrogate pair comes back escaped."""
    written = line(text, trace).to_bytes()
    assert written.count(b"\n") == 1
    assert written.isascii()
    read = LogLine.of(written)
    assert read is not None
    assert read.text == text.encode(errors="backslashreplace").decode()
    assert read.trace == trace.encode(errors="backslashreplace").decode()


def test_long_text_keeps_its_beginning_and_a_long_traceback_its_end() -> None:
    """A message begins with what it is about; the error itself is a traceback's last line."""
    read = LogLine.of(line("a" + "b" * 10_000, "c" * 50_000 + "d").to_bytes())
    assert read is not None
    assert len(read.text) == TEXT_CHARACTERS_MAX
    assert read.text.startswith("ab")
    assert len(read.trace) == TRACE_CHARACTERS_MAX
    assert read.trace.endswith("cd")


@pytest.mark.parametrize(
    "written",
    [
        b"",
        b"not JSON\n",
        b"[]\n",
        b'{"at": 1}\n',
        line().to_bytes().replace(b'"error"', b'"loud"'),
        line().to_bytes().replace(b"1.5", b"NaN"),
        line().to_bytes().replace(b"1.5", b"1e300"),
        line().to_bytes()[:-9],
    ],
)
def test_a_damaged_line_is_none(written: bytes) -> None:
    """A crash has cut it off, another program wrote it, or no clock shows its time."""
    assert LogLine.of(written) is None


def test_a_field_of_a_later_version_is_skipped() -> None:
    """So that logs stay readable while a cluster is upgraded."""
    assert LogLine.of(line().to_bytes().replace(b"{", b'{"mood": 3, ')) == line()
    assert math.isclose(line().at, 1.5)


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
