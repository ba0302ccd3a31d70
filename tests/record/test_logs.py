"""Logs of many processes are read as one, and a reader that comes again gets what is new."""

import math
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from downpour.files.log_places import FolderLogs, LogLine
from downpour.record.logs import LogFilter, read_logs, span_of
from downpour.record.record import read_record
from tests.files.logs.test_log_writer import Memory

RECORDED = Path(__file__).parents[1] / "recorded"
LINE = LogLine(
    at=1.0, host="red", name="worker-1", pid=1, level="info", source="stdout", text="hello"
)


def piece(number: int) -> str:
    """Name a piece."""
    return f"p-{number:06d}.jsonl"


def test_lines_of_all_processes_come_in_the_order_of_their_times() -> None:
    """Lines of one moment stay in the order in which their process wrote them."""
    place = Memory()
    for number, times in enumerate([(1.0, 4.0), (2.0, 2.0, 3.0)]):
        for count, at in enumerate(times):
            line = replace(LINE, at=at, name=f"worker-{number}", text=str(count))
            place.append(piece(number), line.to_bytes())
    page = read_logs(place)
    assert [(line.at, line.text) for line in page.lines] == [
        (1.0, "0"),
        (2.0, "0"),
        (2.0, "1"),
        (3.0, "2"),
        (4.0, "1"),
    ]


@given(cuts=st.lists(st.integers(0, 400), max_size=6))
def test_however_often_a_reader_comes_it_gets_each_line_once(cuts: list[int]) -> None:
    """Also when it comes in the middle of a line, of which nothing is shown until it is whole."""
    lines = [replace(LINE, at=float(at), text=f"line {at}") for at in range(4)]
    whole = b"".join(line.to_bytes() for line in lines)
    place, cursor, read = Memory(), None, list[LogLine]()
    for begin, end in zip([0, *sorted(cuts)], [*sorted(cuts), len(whole)], strict=True):
        place.append(piece(0), whole[begin:end])
        page = read_logs(place, cursor)
        read += page.lines
        cursor = page.cursor
    assert read == lines


def test_pieces_that_are_gone_leave_the_cursor() -> None:
    """So it stays as small as what is there, and new pieces are found."""
    place = Memory()
    place.append(piece(0), LINE.to_bytes())
    cursor = read_logs(place).cursor
    place.remove(piece(0))
    place.append(piece(1), LINE.to_bytes())
    page = read_logs(place, cursor)
    assert page.lines == (LINE,)
    assert set(page.cursor) == {piece(1)}


def test_damage_costs_its_own_line_only(tmp_path: Path) -> None:
    """What a machine that crashed left behind, or a stranger wrote."""
    place = FolderLogs(tmp_path)
    place.append(piece(0), b'{"at": \n\xff\xfe\x00\n' + LINE.to_bytes() + b"[" * 10_000 + b"\n")
    place.append(piece(1), b"\0" * 4096)
    assert read_logs(place).lines == (LINE,)


def test_of_more_than_fits_memory_the_latest_is_read() -> None:
    """And the page says how much was left out."""
    place = Memory()
    place.append(piece(0), LINE.to_bytes())
    place.append(piece(1), LINE.to_bytes())
    page = read_logs(place, bytes_max=len(LINE.to_bytes()) + 1)
    assert page.lines == (LINE,)
    assert page.skipped_bytes == len(LINE.to_bytes())
    assert read_logs(place, page.cursor).lines == ()


def test_a_filter_takes_a_time_a_level_and_a_process_or_a_host() -> None:
    """`red` is the host, and `worker-1` the process."""
    assert LogFilter().takes(LINE)
    assert LogFilter(of="red").takes(LINE)
    assert LogFilter(of="worker-1", level="info", begin=1.0, end=1.0).takes(LINE)
    assert not LogFilter(of="worker-2").takes(LINE)
    assert not LogFilter(level="warning").takes(LINE)
    assert not LogFilter(begin=1.5).takes(LINE)
    assert not LogFilter(end=0.5).takes(LINE)


def test_an_experiments_span_is_from_its_submission_to_its_end() -> None:
    """With some seconds around it, for clocks that differ; one that runs has no end."""
    record = read_record(RECORDED / "handoff" / "record.jsonl")
    begin, end = span_of("uneven-20260102-030405-51c0", record)
    assert begin == datetime(2026, 1, 2, 3, 4, 0, tzinfo=UTC).timestamp()
    assert end - begin == pytest.approx(record[-1][0] - record[0][0] + 10.0)
    assert span_of("uneven-20260102-030405-51c0", record[:3]) == (begin, math.inf)
    assert span_of("uneven-51c0", record) == (0.0, math.inf)
