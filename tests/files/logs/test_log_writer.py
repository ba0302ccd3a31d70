"""A process's log is written by a thread, is bounded, and never holds up the process."""

from __future__ import annotations

import time
from pathlib import Path
from threading import Event

import pytest

from downpour.base.errors import SharedDirectoryError
from downpour.files.logs.log_places import PIECE_BYTES_MAX, FolderLogs, Piece
from downpour.files.logs.process_log import PIECES_KEPT, QUEUE_BYTES_MAX, LogWriter


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
