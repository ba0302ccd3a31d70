"""Values of recorded experiments, and the logs beside them."""

import dataclasses
import math
import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from downpour.files.log_places import FolderLogs, LogLine
from downpour.record import rows
from downpour.record.record import read_record
from downpour.record.record_lines import Dated
from downpour.record.result import Result
from downpour.record.stored_experiments import LogFilter, read_logs, span_of
from downpour.record.tables import Tables
from downpour.record.timeline import disturbed_seconds, resources
from downpour.record.view import to_fields
from downpour.show.dashboard.model import RecordTables
from tests.files.logs.test_log_writer import Memory
from tests.record.lines import costs_of

RECORDED = Path(__file__).parents[1] / "recorded"
STORED = sorted(record.parent.name for record in RECORDED.glob("*/record.jsonl"))


def short(value: Any) -> str:
    """A value as people read it; a number has five digits at most."""
    if isinstance(value, dict):
        return " ".join(f"{name} {short(inner)}" for name, inner in value.items())
    if isinstance(value, tuple | list):
        return f"({', '.join(map(short, value))})"
    return f"{value:.5g}" if isinstance(value, float) else str(value)


def counted(values: Iterator[Any]) -> str:
    """How often each value comes."""
    return short(dict(sorted(Counter(values).items()))) or "none"


def of_result(result: Result) -> Iterator[str]:
    """The rows of a result."""
    yield f"{result.experiment}: {result.state}, {short(result.total_seconds)} s"
    yield f"reason: {result.reason}"
    for row in result.rounds:
        yield (
            f"round {row.round}: train loss {short(row.train_loss)}, "
            f"{short(row.train_seconds)} s, {row.bytes} bytes"
        )
    yield f"last loss: {short(result.test_loss)}, metrics: {short(dict(result.metrics))}"
    yield f"tasks: {len(result.tasks)}, retrained: {sum(one.retrained for one in result.tasks)}"
    yield f"tasks by worker: {counted(one.worker for one in result.tasks)}"
    yield f"samples: {sum(one.samples for one in result.tasks)}"
    yield f"failures: {counted(one.failure for one in result.failures)}"
    yield f"updates refused or lost: {sum(one.update_lost for one in result.failures)}"


def of_timeline(result: Result, tables: Tables) -> Iterator[str]:
    """Attempts and workers over time."""
    yield f"attempts: {counted(one.outcome for one in result.spans)}"
    yield f"awaited by their rounds: {sum(one.last for one in result.spans)}"
    seconds = sum(one.end_seconds - one.begin_seconds for one in result.spans)
    yield f"seconds of attempts: {short(seconds)}"
    yield f"samples of resources: {sum(map(len, resources(tables).values()))}"
    yield f"disturbed: {short(disturbed_seconds(tables))}"
    yield from (f"worker: {change}" for change in result.worker_changes)


def of_versions(tables: Tables) -> Iterator[str]:
    """Versions, evaluations, and the cost of stragglers."""
    for number, version in tables.versions.items():
        tasks = " ".join(f"{of_round}/{shard}" for of_round, shard in version.updates)
        yield f"version {number}: at {short(version.at)}, of updates {tasks}"
    yield f"updates in no version: {short(list(tables.waiting))}"
    for number, (at, line) in tables.evaluated.items():
        yield f"evaluation of round {number}: at {short(at)}, loss {short(line.loss)}"
    for number, cost in costs_of(tables).items():
        yield f"cost of round {number}: {short(dataclasses.asdict(cost))}"


def of_page(record: list[Dated]) -> Iterator[str]:
    """The tables of the live page, and what it adds up."""
    model = RecordTables()
    for at, line in record:
        model.take({"at": at, **to_fields(line)})
    frame = model.since(0, model.line)
    yield f"page: {short(frame.pop('totals'))}"
    del frame["seq"], frame["experiment"]
    yield f"page rows: {short({name: len(rows) for name, rows in frame.items()})}"
    yield f"page ends: {counted(str(outcome) for *_, outcome in frame['ends'])}"
    yield from (f"page round: {short(row)}" for row in frame["rounds"])
    yield from (f"page decision: {short(row)}" for row in frame.get("decisions", ()))


@pytest.mark.parametrize("kept", [64, 0], ids="keeps {} rounds".format)
@pytest.mark.parametrize("name", STORED)
def test_queries_give_the_stored_values(
    name: str, kept: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever changes in how a record is folded, and however soon a result forgets rounds."""
    monkeypatch.setattr(rows, "_ROUNDS_KEPT", kept)
    record = read_record(RECORDED / name / "record.jsonl")
    result, tables = Result.from_record(record), Tables.of(record)
    found = [*of_result(result), *of_timeline(result, tables), *of_versions(tables)]
    text = "\n".join([*found, *of_page(record)]) + "\n"
    stored = RECORDED / name / "queries.txt"
    if os.environ.get("UPDATE_QUERIES") == "1":
        stored.write_text(text, encoding="utf-8")
    assert text == stored.read_text(encoding="utf-8")


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
