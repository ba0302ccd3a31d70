"""An experiment's record: what is written is read back, whatever a crash left at its end."""

from __future__ import annotations

import dataclasses
import errno
import itertools
import json
import math
import os
import resource
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from downpour.base.errors import FileCorrupt, FileMissing, SharedDirectoryError, StoreError
from downpour.core.spec import Spec
from downpour.files.records import record as module
from downpour.files.records.record import RecordWriter, parse_lines, read_record
from downpour.files.records.record_lines import (
    KINDS,
    AssignedLine,
    CancelledLine,
    EvaluatedLine,
    RecordLine,
    Sample,
    WorkerLeftLine,
    from_fields,
    to_fields,
)

FIRST = AssignedLine(round=0, shard=1, attempt=0, worker="w-1", reason="the only idle worker")
SECOND = WorkerLeftLine(worker="w-1", reason="no heartbeat for 10 s")

finite = st.floats(allow_nan=False, allow_infinity=False)
BY_TYPE = {
    "float": finite,
    "Measured": finite,
    "dict[str, Measured]": st.dictionaries(st.text(), finite),
    "tuple[Measured, ...]": st.lists(finite).map(tuple),
    "tuple[Sample, ...]": st.lists(
        st.builds(Sample, at_seconds=finite, cpu_share=finite, io_wait=finite)
    ).map(tuple),
    "dict[str, Any]": st.just(Spec().model_dump(mode="json")),
}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where a record will be."""
    return tmp_path / "record.jsonl"


def write(record: RecordWriter, at_seconds: float, fact: RecordLine) -> None:
    """Append one fact and flush it."""
    record.append(at_seconds, fact)
    record.flush()


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS.keys())
@given(data=st.data())
def test_every_fact_survives_json(kind: type[RecordLine], data: st.DataObject) -> None:
    """Kind and fields come back equal from the line they were written to."""
    chosen = {f.name: BY_TYPE[str(f.type)] for f in dataclasses.fields(kind) if f.type in BY_TYPE}
    facts: st.SearchStrategy[Any] = st.builds(kind, **chosen)
    fact = data.draw(facts)
    assert from_fields(json.loads(json.dumps(to_fields(fact), allow_nan=False))) == fact


def test_facts_are_read_back_in_order(path: Path) -> None:
    """The record tells when each thing happened."""
    with RecordWriter(path) as record:
        write(record, 0.5, FIRST)
        write(record, 2.0, SECOND)
        assert len(record) == 2
    assert read_record(path) == [(0.5, FIRST), (2.0, SECOND)]


def test_a_line_is_readable_by_people_and_other_programs(path: Path) -> None:
    """Time and kind come first, then the fact's own fields."""
    with RecordWriter(path) as record:
        write(record, 2.0, SECOND)
    assert path.read_text() == (
        '{"at": 2.0, "kind": "worker-left", "worker": "w-1", "reason": "no heartbeat for 10 s", '
        '"lost": false}\n'
    )


def test_an_evaluation_of_an_earlier_version_has_its_accuracy_among_the_metrics() -> None:
    """The word of its line was another one, too: earlier readers skip today's."""
    told = {"kind": "evaluated", "round": 1, "accuracy": 0.5, "loss": 1.0, "class_accuracy": []}
    assert from_fields({**told, "seconds": 0.1}) == EvaluatedLine(
        round=1, loss=1.0, metrics={"accuracy": 0.5}, class_accuracy=(), seconds=0.1
    )


def test_what_json_cannot_hold_is_null(path: Path) -> None:
    """NaN and infinity are written as null, and read as NaN."""
    measured = EvaluatedLine(
        round=3,
        loss=math.inf,
        metrics={"psnr": math.inf},
        class_accuracy=(math.nan, 1.0),
        seconds=0.1,
    )
    with RecordWriter(path) as record:
        write(record, 1.0, measured)
        assert json.loads(record.lines(0)[0])["class_accuracy"] == [None, 1.0]
    ((_, read),) = read_record(path)
    assert isinstance(read, EvaluatedLine)
    assert math.isnan(read.loss)
    assert math.isnan(read.class_accuracy[0])


def test_a_torn_last_line_is_left_out(path: Path) -> None:
    """A crash in the middle of a line costs that line only."""
    with RecordWriter(path) as record:
        write(record, 0.5, FIRST)
    with path.open("ab") as file:
        file.write(b'{"at": 1.0, "kind": "canc')
    assert read_record(path) == [(0.5, FIRST)]


def test_a_record_is_continued_after_a_crash(path: Path) -> None:
    """A restarted manager goes on behind the last whole line, and pages count from the start."""
    path.write_bytes(b'{"at": 1.0, "kind": "cancelled", "reason": "user"}\n{"at": 2')
    with RecordWriter(path) as record:
        write(record, 3.0, SECOND)
        assert len(record.lines(0)) == 2
    assert read_record(path) == [(1.0, CancelledLine(reason="user")), (3.0, SECOND)]


@pytest.mark.parametrize(
    "line",
    [
        "",
        "nonsense",
        "[]",
        "3",
        '{"kind": "cancelled"}',
        '{"at": 1, "kind": "cancelled"}',
        "\ufffd",
    ],
)
def test_a_corrupt_line_is_named(path: Path, line: str) -> None:
    """Whoever reads an altered record learns where, instead of getting half of it."""
    good = '{"at": 1.0, "kind": "cancelled", "reason": "user"}\n'
    path.write_text(good + line + "\n" + good)
    with pytest.raises(FileCorrupt, match="line 2 is not a fact"):
        read_record(path)


def test_what_a_newer_version_wrote_is_skipped() -> None:
    """Unknown kinds are left out, unknown fields of known kinds too."""
    lines = [
        '{"at": 1.0, "kind": "handed-over", "shard": 3}',
        '{"at": 2.0, "kind": "cancelled", "reason": "user", "by": "ana"}',
    ]
    assert parse_lines(lines) == [(2.0, CancelledLine(reason="user"))]


def test_a_missing_record_is_said_so(path: Path) -> None:
    """The error names the file."""
    with pytest.raises(FileMissing, match=r"record\.jsonl"):
        read_record(path)


def test_what_cannot_be_read_is_not_said_to_be_missing(path: Path) -> None:
    """A folder without a record counts as never begun, and is removed."""
    path.mkdir()
    with pytest.raises(FileCorrupt, match=r"record\.jsonl"):
        read_record(path)


def test_a_record_that_cannot_be_opened_names_its_folder(tmp_path: Path) -> None:
    """The shared directory is wrong, and that is what the user hears."""
    with pytest.raises(SharedDirectoryError, match="no such folder"):
        RecordWriter(tmp_path / "absent" / "record.jsonl")


def test_pages_follow_on_each_other(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages are bounded in lines; together they are the whole record."""
    monkeypatch.setattr(module, "PAGE_LINES_MAX", 3)
    with RecordWriter(path) as record:
        for second in range(8):
            write(record, second, FIRST)
        pages = [record.lines(0), record.lines(3), record.lines(6), record.lines(8)]
    assert [len(page) for page in pages] == [3, 3, 2, 0]
    assert parse_lines(itertools.chain(*pages)) == read_record(path)


def test_a_page_is_bounded_in_bytes_but_never_stuck(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A line longer than a page still comes, alone."""
    monkeypatch.setattr(module, "PAGE_BYTES_MAX", 120)
    with RecordWriter(path) as record:
        write(record, 0.0, CancelledLine(reason="short"))
        write(record, 1.0, CancelledLine(reason="short"))
        write(record, 2.0, CancelledLine(reason="l" + "o" * 500 + "ng"))
        assert [len(record.lines(line)) for line in range(5)] == [2, 1, 1, 0, 0]
        assert record.lines(-1) == []


def test_a_full_disk_is_told_and_leaves_no_half_line(path: Path) -> None:
    """What did not fit waits, whole; the record goes on with it once there is room again."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    with RecordWriter(path) as record:
        write(record, 0.0, FIRST)
        try:
            resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + 10, limits[1]))
            with pytest.raises(StoreError, match=r"record\.jsonl: .*File too large"):
                write(record, 1.0, SECOND)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        write(record, 2.0, SECOND)
    assert read_record(path) == [(0.0, FIRST), (1.0, SECOND), (2.0, SECOND)]


class Failing:
    """A file on a directory that goes away in the middle of a write, and stays away for a while."""

    def __init__(self, file: Any) -> None:
        self.file = file
        self.away = True

    def write(self, content: bytes) -> int:
        """Write the first half, then fail."""
        self.file.write(content[: len(content) // 2] if self.away else content)
        self._check()
        return len(content)

    def truncate(self, size: int) -> None:
        """Fail as well."""
        self._check()
        self.file.truncate(size)

    def _check(self) -> None:
        if self.away:
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.file, name)


def test_half_a_line_that_could_not_be_removed_is_removed_before_the_next(path: Path) -> None:
    """A directory that is away refuses both: to write the rest, and to take back the half."""
    record = RecordWriter(path)
    write(record, 0.0, FIRST)
    failing = Failing(record._file)
    record._file = failing  # type: ignore[assignment]
    with pytest.raises(SharedDirectoryError):
        write(record, 1.0, SECOND)
    failing.away = False
    record.flush()
    assert record.lines(0) == path.read_text().splitlines()
    record._file = failing.file
    record.close()
    assert read_record(path) == [(0.0, FIRST), (1.0, SECOND)]


def test_a_fact_cannot_be_changed() -> None:
    """What happened, happened."""
    with pytest.raises(dataclasses.FrozenInstanceError):
        FIRST.worker = "w-2"  # type: ignore[misc]
