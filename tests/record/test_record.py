"""An experiment's record: exported or projected from the journal, it is read back the same."""

import itertools
import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from downpour.base.errors import FileCorrupt, FileMissing, SharedDirectoryError
from downpour.base.states import ExperimentState
from downpour.core.scheduler import outputs as out
from downpour.core.spec import Spec
from downpour.record import journal as journals
from downpour.record import record as module
from downpour.record import record_lines as told
from downpour.record.journal import Journal, read_journal, segments
from downpour.record.record import (
    RecordReader,
    export_record,
    line_text,
    parse_lines,
    read_record,
    stream_record,
    task_lines,
)
from downpour.record.view import from_fields, observed, to_fields
from downpour.show.dashboard.page_data import RecordSource
from tests.record.test_journal import CHECKPOINT, ONE_OF_EACH

FIRST = told.AssignedLine(round=0, shard=1, attempt=0, worker="w-1", reason="the only idle worker")
SECOND = told.WorkerLeftLine(worker="w-1", reason="no heartbeat for 10 s", lost=False)

finite = st.floats(allow_nan=False, allow_infinity=False)
BY_TYPE: dict[Any, st.SearchStrategy[Any]] = {
    told.Count: st.integers(0, 2**31 - 1),
    told.Size: st.integers(0, 2**62),
    float: finite,
    dict[str, float]: st.dictionaries(st.text(), finite),
    tuple[float, ...]: st.lists(finite).map(tuple),
    tuple[told.Sample, ...]: st.lists(
        st.builds(told.Sample, finite, finite, st.integers(0, 2**62), st.integers(0, 99), finite)
    ).map(tuple),
    dict[str, Any]: st.just(Spec().model_dump(mode="json")),
}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where a record will be."""
    return tmp_path / "record.jsonl"


def logged(folder: Path, *facts: told.RecordLine, term: int = 1) -> Journal:
    """Log observations of facts, a second apart, and write them to no record."""
    journal = Journal(folder, term, read_journal(folder))
    for second, fact in enumerate(facts):
        journal.append(1, float(second), observed("one", fact))
    journal.commit(durably=False)
    return journal


def export(path: Path, *facts: told.RecordLine) -> None:
    """Write a record of facts, a second apart."""
    texts = [line_text(float(second), fact) for second, fact in enumerate(facts)]
    export_record(path.parent, texts)


@pytest.mark.parametrize("kind", told.KINDS.values(), ids=told.KINDS.keys())
@given(data=st.data())
def test_every_fact_survives_json(kind: type[told.RecordLine], data: st.DataObject) -> None:
    """Kind and fields come back equal from the line they were written to."""
    several = (vars(each).get("__annotations__", {}) for each in kind.__mro__)
    chosen = {f: BY_TYPE[t] for types in several for f, t in types.items() if t in BY_TYPE}
    facts: st.SearchStrategy[Any] = st.builds(kind, **chosen)
    fact = data.draw(facts)
    assert from_fields(json.loads(json.dumps(to_fields(fact), allow_nan=False))) == fact


def test_a_record_is_projected_until_it_is_exported(path: Path) -> None:
    """The record tells when each thing happened; the file has the same lines."""
    logged(path.parent, FIRST, SECOND)
    assert read_record(path) == [(0.0, FIRST), (1.0, SECOND)]
    export_record(path.parent, RecordReader(path.parent).all_lines())
    for segment in segments(path.parent):
        segment.unlink()
    assert read_record(path) == [(0.0, FIRST), (1.0, SECOND)]


def test_reading_goes_on_in_the_exported_record(path: Path) -> None:
    """If the run ends meanwhile and removes its journal."""
    logged(path.parent, FIRST, SECOND)
    lines = stream_record(path)
    assert next(lines) == (0.0, FIRST)
    export_record(path.parent, RecordReader(path.parent).all_lines())
    for segment in segments(path.parent):
        segment.unlink()
    assert list(lines) == [(1.0, SECOND)]


def test_a_record_is_exported_once(path: Path) -> None:
    """A manager that died after it had done that is followed by one that tries again."""
    export(path, FIRST)
    before = path.stat()
    export(path, FIRST)
    assert path.stat() == before
    assert read_record(path) == [(0.0, FIRST)]


STRAYS = {
    "another experiment's": [told.CancelledLine(reason="another")],
    "longer than the journal": [FIRST, SECOND, told.CancelledLine(reason="restored")],
}


@pytest.mark.parametrize("stray", STRAYS.values(), ids=STRAYS.keys())
def test_a_file_that_is_not_the_view_of_the_journal_does_not_count(
    path: Path, stray: list[told.RecordLine]
) -> None:
    """While its experiment waits or runs, no reader takes it; at the end the record replaces it."""
    journal = logged(path.parent, FIRST, SECOND)
    export(path, *stray)
    manager, page = RecordReader(path.parent), RecordSource(path.parent)
    for _ in range(2):
        assert parse_lines(RecordReader(path.parent).lines(0)) == read_record(path)
        assert [fact for _, fact in read_record(path)] == [FIRST, SECOND]
        assert [fact for _, fact in task_lines(path.parent, 0, 1)] == [FIRST]
        manager.lines(0)
    assert [line["kind"] for line in page.read(9)] == ["assigned", "worker-left"]
    end = out.Concluded(
        cause=0, experiment="one", ending=ExperimentState.CANCELLED, reason="enough"
    )
    journal.append(1, 2.0, end)
    journal.commit(durably=False)
    export_record(path.parent, manager.all_lines())
    known = [(0.0, FIRST), (1.0, SECOND), (2.0, told.CancelledLine(reason="enough"))]
    assert parse_lines(path.read_text().splitlines()) == known
    assert read_record(path) == parse_lines(RecordReader(path.parent).lines(0)) == known
    assert page.read(9)[-1]["kind"] == "cancelled"


def test_a_line_is_readable_by_people_and_other_programs(path: Path) -> None:
    """Time and kind come first, then the fact's own fields."""
    export(path, SECOND)
    assert path.read_text() == (
        '{"at": 0.0, "kind": "worker-left", "worker": "w-1", "reason": "no heartbeat for 10 s", '
        '"lost": false}\n'
    )


def test_nan_and_infinity_are_null(path: Path) -> None:
    """NaN and infinity are written as null, and read as NaN."""
    measured = told.EvaluatedLine(
        round=3,
        loss=math.inf,
        metrics={"psnr": math.inf},
        class_accuracy=(math.nan, 1.0),
        seconds=0.1,
    )
    logged(path.parent, measured)
    assert json.loads(RecordReader(path.parent).lines(0)[0])["class_accuracy"] == [None, 1.0]
    ((_, read),) = read_record(path)
    assert isinstance(read, told.EvaluatedLine)
    assert math.isnan(read.loss)
    assert math.isnan(read.class_accuracy[0])


def test_a_torn_last_line_is_left_out(path: Path) -> None:
    """A copy that was cut short costs that line only."""
    export(path, FIRST)
    with path.open("ab") as file:
        file.write(b'{"at": 1.0, "kind": "canc')
    assert read_record(path) == [(0.0, FIRST)]


def test_a_reader_follows_a_log(path: Path) -> None:
    """Across segments, managers, and half a line that a crash has left."""
    journal = logged(path.parent, FIRST)
    reader = RecordReader(path.parent)
    assert len(reader.lines(0)) == 1
    journal.append(1, 2.0, observed("one", SECOND))
    journal._turn_over()
    assert len(reader.lines(0)) == 1, "nothing was committed"
    journal.commit()
    assert len(reader.lines(1)) == 1
    with segments(path.parent)[-1].open("ab") as file:
        file.write(b"0123456789abcdef {")
    assert len(reader.lines(0)) == 2
    logged(path.parent, FIRST, term=2)
    assert parse_lines(reader.lines(0)) == [(0.0, FIRST), (2.0, SECOND), (0.0, FIRST)]


@pytest.mark.parametrize("has_read", [True, False])
@pytest.mark.parametrize("listed", [True, False])
def test_a_reader_goes_on_in_the_exported_record_where_the_log_is_gone(
    path: Path, monkeypatch: pytest.MonkeyPatch, *, has_read: bool, listed: bool
) -> None:
    """A run removes its journal once it has ended: before a listing, or between it and opening."""
    journal = logged(path.parent, FIRST)
    reader = RecordReader(path.parent)
    if has_read:
        assert len(reader.lines(0)) == 1
    journal.append(1, 1.0, observed("one", SECOND))
    journal.commit(durably=False)
    there = segments(path.parent)

    def remove() -> None:
        """End the run."""
        if not path.exists():
            export_record(path.parent, RecordReader(path.parent).all_lines())
            for segment in there:
                segment.unlink()

    if listed:
        name = "lines_from" if has_read else "first_number"
        unpatched = getattr(journals, name)

        def gone(*words: Any) -> Any:
            """Look for a file that was there a moment ago."""
            monkeypatch.setattr(journals, name, unpatched)
            remove()
            return unpatched(*words)

        monkeypatch.setattr(journals, name, gone)
    else:
        remove()
    assert [fact for _, fact in parse_lines(reader.lines(0))] == [FIRST, SECOND]


def test_lines_of_a_replaced_manager_are_not_read(path: Path) -> None:
    """The record follows the rules of the journal."""
    earlier = logged(path.parent, FIRST)
    logged(path.parent, SECOND, term=2)
    for _ in range(3):
        earlier.append(1, 9.0, observed("one", FIRST))
    earlier.commit()
    assert read_record(path) == [(0.0, FIRST), (0.0, SECOND)]


def test_a_log_with_a_hole_is_no_record(path: Path) -> None:
    """A reader learns where the journal is altered, though replay may begin behind that."""
    journal = Journal(path.parent, 1)
    for order, entry in enumerate(ONE_OF_EACH[:3], start=1):
        journal.append(order, 1.0, entry)
    journal.commit()
    journal.begin_anew(4, 1.0, CHECKPOINT)
    journal.append(5, 1.0, ONE_OF_EACH[3])
    journal.commit()
    segment = segments(path.parent)[0]
    whole = segment.read_bytes().splitlines(keepends=True)
    segment.write_bytes(whole[0] + whole[1])
    assert len(read_journal(path.parent)) == 4
    with pytest.raises(FileCorrupt, match="entry 3 is missing or altered"):
        read_record(path)


@pytest.mark.parametrize(
    "line",
    [
        "",
        "nonsense",
        "[]",
        "3",
        '{"kind": "cancelled"}',
        '{"at": 1, "kind": "cancelled"}',
        '{"at": 1e999, "kind": "cancelled", "reason": "user"}',
        "\ufffd",
    ],
)
def test_a_corrupt_line_is_named(path: Path, line: str) -> None:
    """Whoever reads an altered record learns where, instead of getting half of it."""
    good = '{"at": 1.0, "kind": "cancelled", "reason": "user"}\n'
    path.write_text(good + line + "\n" + good)
    with pytest.raises(FileCorrupt, match="line 2 is not a fact"):
        read_record(path)


def test_kinds_and_fields_of_a_newer_version_are_skipped() -> None:
    """Unknown kinds are left out, unknown fields of known kinds too."""
    lines = [
        '{"at": 1.0, "kind": "handed-over", "shard": 3}',
        '{"at": 2.0, "kind": "cancelled", "reason": "user", "by": "ana"}',
    ]
    assert parse_lines(lines) == [(2.0, told.CancelledLine(reason="user"))]


def test_a_missing_record_is_said_so(path: Path) -> None:
    """The error names the file."""
    with pytest.raises(FileMissing, match=r"record\.jsonl"):
        read_record(path)


def test_an_unreadable_record_is_not_missing(path: Path) -> None:
    """A folder without a record counts as never begun, and is removed."""
    path.mkdir()
    with pytest.raises(FileCorrupt, match=r"record\.jsonl"):
        read_record(path)


def test_a_record_that_cannot_be_opened_names_its_folder(tmp_path: Path) -> None:
    """The shared directory is wrong, and that is what the user hears."""
    with pytest.raises(SharedDirectoryError, match="no such folder"):
        RecordReader(tmp_path / "absent").lines(0)


def both(path: Path, *facts: told.RecordLine) -> list[RecordReader]:
    """Return a reader that has followed a journal, and one of the record that was exported then."""
    logged(path.parent, *facts)
    followed = RecordReader(path.parent)
    export_record(path.parent, followed.all_lines())
    for segment in segments(path.parent):
        segment.unlink()
    return [followed, RecordReader(path.parent)]


def test_pages_follow_on_each_other(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages are bounded in lines; together they are the whole record."""
    monkeypatch.setattr(module, "PAGE_LINES_MAX", 3)
    for record in both(path, *[FIRST] * 8):
        pages = [record.lines(0), record.lines(3), record.lines(6), record.lines(8)]
        assert [len(page) for page in pages] == [3, 3, 2, 0]
        assert parse_lines(itertools.chain(*pages)) == read_record(path)
        assert record.lines(7) == pages[2][1:]


def test_a_page_is_bounded_in_bytes_but_never_stuck(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A line longer than a page still comes, alone."""
    monkeypatch.setattr(module, "PAGE_BYTES_MAX", 120)
    short, long = (
        told.CancelledLine(reason="short"),
        told.CancelledLine(reason="l" + "o" * 500 + "ng"),
    )
    for record in both(path, short, short, long):
        assert [len(record.lines(line)) for line in range(5)] == [2, 1, 1, 0, 0]
        assert record.lines(-1) == []


def test_a_fact_cannot_be_changed() -> None:
    """What happened, happened."""
    with pytest.raises(AttributeError):
        FIRST.worker = "w-2"  # type: ignore[misc]
