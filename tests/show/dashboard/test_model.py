"""The tables of the page: the same for every viewer, and those that a report shows."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from downpour.experiments.page_server.viewers import event
from downpour.record import record_lines as told
from downpour.record.record import line_text, read_record
from downpour.record.tables import Tables
from downpour.record.timeline import attempt_spans
from downpour.show.dashboard import columns
from downpour.show.dashboard.model import RecordTables
from tests.record.lines import aggregated, assigned, prepared, submitted, updated
from tests.show.dashboard.records import fields_of, large_record
from tests.show.dashboard.viewer import Viewer, seen_at_once

RECORDED = Path(__file__).parents[2] / "recorded"
Fields = dict[str, Any]


def recorded(name: str) -> list[told.Dated]:
    """A record of a run, or a made one."""
    if name == "large":
        return list(large_record(6, 4))
    return read_record(RECORDED / name / "record.jsonl")


def folded(lines: list[Fields]) -> RecordTables:
    """A model of lines that are all facts."""
    model = RecordTables()
    for line in lines:
        model.take(line)
    return model


@pytest.fixture(params=["handoff", "gestures", "large"])
def record(request: pytest.FixtureRequest) -> list[told.Dated]:
    """Experiments with hand-overs, copies, failures and many rounds."""
    return recorded(request.param)


def test_attempts_are_those_of_the_reports_timeline(record: list[told.Dated]) -> None:
    """With the same times and ends, though one is folded as it grows and the other at the end."""
    viewer = seen_at_once(folded(fields_of(iter(record))))
    names = {row[0]: row[1] for row in viewer.rows("workers")}
    ends = {row[0]: row[1:] for row in viewer.rows("ends")}
    start = min(at for at, line in record if isinstance(line, told.AssignedLine)) - record[0][0]
    shown = {
        (names[worker], number, shard, attempt): (begin, *ends[i])
        for i, worker, number, shard, attempt, begin, *_ in viewer.rows("attempts")
    }
    reported = {
        (span.worker, span.round, span.shard, span.attempt): (
            pytest.approx(span.begin_seconds + start, abs=0.001),
            pytest.approx(span.end_seconds + start, abs=0.001),
            "last" if span.last else span.outcome,
        )
        for span in attempt_spans(Tables.of(record))
    }
    assert shown == reported


SECONDS = st.floats(0, 100)
ROUNDS, SHARDS, WORKERS = st.integers(0, 3), st.integers(0, 2), st.sampled_from("abc")
FIELDS = {
    "round": ROUNDS,
    "shard": SHARDS,
    "attempt": st.integers(0, 2),
    "worker": WORKERS,
    "meant_for": WORKERS,
    "failure": st.sampled_from(["lost", "cancelled", "handed_over", "task"]),
    "shards": st.just((1,)),
    "step": st.integers(0, 1000),
    "steps": st.integers(0, 1000),
    "version": st.integers(1, 9),
    "bytes": st.integers(0, 10**9),
    "moved_bytes": st.integers(0, 9),
    "done": st.floats(0, 1),
    "parts": st.lists(st.tuples(ROUNDS, SHARDS), max_size=2).map(tuple),
    "staleness": st.lists(st.integers(0, 5), max_size=2).map(tuple),
}


def lines_of(kind: Any, **fields: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Lines of a kind; their times are short, and other numbers are small."""
    for name in kind.__struct_fields__:
        if name in FIELDS:
            fields.setdefault(name, FIELDS[name])
        elif name.endswith("seconds"):
            fields[name] = st.none() | SECONDS if name[0] == "q" else SECONDS
    return st.builds(kind, **fields)


LINES = st.one_of(
    lines_of(told.UpdatedLine, samples=st.integers(0, 1000)),
    lines_of(told.ResourcesUsedLine, samples=st.just(((1.0, 0.5, 9, 1, 0.0),))),
    *map(
        lines_of,
        [
            told.AssignedLine,
            told.ForeseenLine,
            told.PhaseLine,
            told.SavedLine,
            told.AttemptFailedLine,
            told.HandOverAskedLine,
            told.DroppedLine,
            told.WorkerLeftLine,
            told.AggregatedLine,
        ],
    ),
)


def as_read(lines: list[Any]) -> list[Fields]:
    """Lines as a reader gets them, a second apart, after the beginning of a record."""
    beginning = fields_of(iter(recorded("handoff")[:6]))
    read = [json.loads(line_text(2.0 + at, line)) for at, line in enumerate(lines)]
    return beginning + read


@given(st.lists(LINES, max_size=40), st.data())
def test_every_cut_into_frames_ends_in_the_same_tables(
    lines: list[Any], data: st.DataObject
) -> None:
    """Whether a viewer sees each line at once, comes late, or was away in between."""
    fields, model, viewer = as_read(lines), RecordTables(), Viewer()
    for number, line in enumerate(fields, start=1):
        model.take(line)
        if number == len(fields) or data.draw(st.booleans()):
            # Also in pieces, as a viewer gets them that is far behind.
            upto = data.draw(st.integers(viewer.seq, model.line))
            viewer.see(model.since(viewer.seq, upto))
    viewer.see(model.since(viewer.seq, model.line))
    assert viewer.shown == seen_at_once(model).shown


@given(st.lists(LINES, max_size=40))
def test_each_frame_has_only_what_has_changed(lines: list[Any]) -> None:
    """A viewer that knows the last line gets no rows, and each line changes few."""
    model = RecordTables()
    for line in as_read(lines):
        before = model.line
        model.take(line)
        changed = Viewer()
        changed.see(model.since(before, model.line))
        assert before == 0 or changed.rows_seen <= 16
        assert set(model.since(model.line, model.line)) == {"seq"}


JUNK = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)


@given(st.lists(LINES, min_size=1, max_size=10), st.data())
def test_a_damaged_line_counts_and_changes_nothing(lines: list[Any], data: st.DataObject) -> None:
    """Whatever stands in a field of it; the lines after it are folded."""
    model, fields = RecordTables(), as_read(lines)
    for line in fields[:-1]:
        model.take(line)
    damaged = dict(fields[-1])
    damaged[data.draw(st.sampled_from(sorted(damaged)))] = data.draw(JUNK)
    before = seen_at_once(model).shown
    refused = ""
    try:
        model.take(damaged)
    except ValueError as error:
        refused = str(error)
    if refused:
        assert refused == f"line {len(fields)} is not a fact of an experiment"
        assert seen_at_once(model).shown == before
    model.take(fields[-1])
    viewer = seen_at_once(model)
    assert viewer.seq == len(fields) + 1


def test_lines_of_a_later_version_are_left_out_and_named() -> None:
    """A field that this version does not know is ignored, and a kind is told in a warning."""
    lines = fields_of(iter(recorded("handoff")))
    newer = [{**line, "mood": "cheerful"} for line in lines]
    newer.insert(10, {"at": 1.5, "kind": "teleported", "worker": "a"})
    one, other = seen_at_once(folded(lines)), seen_at_once(folded(newer))
    assert [other.tables[name] for name in other.tables] == [
        one.tables[name] for name in one.tables
    ]
    (warning,) = other.experiment["warnings"]
    assert "teleported" in warning


def test_decisions_come_in_words_with_their_attempts() -> None:
    """A hand-over, a wait, a copy and a drop; each names who and why."""
    viewer = seen_at_once(folded(fields_of(iter(recorded("handoff")))))
    said = [(kind, text) for _, _, kind, text, _ in viewer.rows("decisions")]
    assert said == [
        ("hand-over", "hand over from d to a: d would take 29 s more than the others"),
        ("wait", "round 1 waited 8.0 s for shard 3 at a"),
        ("copy", "round 2 shard 1 also to a: b would take 40 s more: a tries it, too"),
        ("wait", "round 2 waited 10.0 s for shard 1 at a"),
        ("drop", "close round 3 without shards 2: three of four are there"),
        ("end", "finished"),
    ]
    asked, *_ = viewer.rows("decisions")
    assert viewer.rows("attempts")[asked[4]][2:5] == [1, 3, 0]


def test_a_worker_says_what_it_does_besides_training() -> None:
    """Until it trains again, has another task, or registers with the next manager."""
    task: Fields = {"round": 0, "shard": 0, "attempt": 0, "worker": "a"}
    begins: Fields = {"kind": "assigned", **task, "reason": "first", "at": 1.0}
    sent: Fields = {"kind": "phase", **task, "phase": "publishing", "moved_bytes": 12, "at": 2.0}
    sent |= {"whole_bytes": 40}
    joins: Fields = {"kind": "worker-joined", "worker": "a", "address": "x", "at": 3.0}
    joins |= {"numeric_class": "x"}
    for then in ({**sent, "phase": "training"}, {**begins, "round": 1}, joins):
        model = folded([*as_read([])[:6], begins, sent])
        assert seen_at_once(model).rows("workers")[0][-1] == "publishing 12 of 40 bytes"
        model.take(then)
        assert seen_at_once(model).rows("workers")[0][-1] == ""


def test_the_time_left_leaves_out_a_pause() -> None:
    """Three rounds took ten seconds each, so the fourth will; a pause of a hundred lay between."""
    story: list[told.Dated] = [(0.0, submitted(1, epochs=4)), (0.0, prepared(100))]
    for number, begin in enumerate((0.0, 10.0, 120.0)):
        story += [(begin, assigned(0, round=number)), (begin + 10, updated(0, round=number))]
        story += [(begin + 10, aggregated(number))]
    changes = [(20.0, "paused"), (20.0, "set aside"), (119.0, "continued")]
    story[8:8] = [(at, told.RescheduledLine(change=change)) for at, change in changes]  # type: ignore[arg-type]
    assert folded(fields_of(iter(story))).totals()["left"]["q50"] == 10.0


def test_the_state_is_that_of_the_queue() -> None:
    """An experiment waits for its turn, also after a pause; only one that works shows how long."""
    step = [(assigned(0, round=n), updated(0, round=n), aggregated(n)) for n in range(3)]
    changes = [told.RescheduledLine(change=c) for c in ("paused", "set aside", "continued")]
    begun, ready = told.BegunLine(), prepared(100)
    lines: list[told.RecordLine] = [
        submitted(1, epochs=9),
        begun,
        ready,
        *step[0],
        *step[1],
        *changes,
        begun,
        *step[2],
    ]
    model, shown = RecordTables(), ["none"]
    for at, fields in enumerate(fields_of((float(at), line) for at, line in enumerate(lines))):
        model.take(fields)
        about = model.since(at, at + 1).get("experiment", {"state": shown[-1]})
        shown += [about["state"]] * (about["state"] != shown[-1])
        assert model.summary("one", 0.0)["state"] == shown[-1]
        assert model.totals()["left"] is None or shown[-1] == "running"
    works = ["waiting", "preparing", "running"]
    assert shown == ["none", *works, "paused", "waiting", "running"]


def test_an_update_that_is_lost_lets_its_copy_go_on() -> None:
    """The copy was needless for a while; once the update is lost it is open again."""
    task: Fields = {"round": 0, "shard": 0}
    copy = {"kind": "assigned", **task, "attempt": 1, "worker": "b", "reason": "try", "at": 2.0}
    lines = [
        *as_read([])[:6],
        {**copy, "attempt": 0, "worker": "a", "at": 1.0},
        copy,
        json.loads(line_text(3.0, updated(0))),
        {"kind": "attempt-failed", **task, "attempt": 0, "worker": "a", "at": 4.0}
        | {"failure": "store", "reason": "file lost"},
    ]
    ends = {}
    model = RecordTables()
    for line in lines:
        model.take(line)
        viewer = seen_at_once(model)
        ends[model.line] = [row[1:] for row in viewer.rows("ends")]
    assert ends[len(lines) - 1] == [[3.0, "trained"], [3.0, "stopped"]]
    assert ends[len(lines)] == [[3.0, "failed"], [None, None]]


def test_blocks_of_attempts_that_have_ended_are_small_and_read_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """More attempts than a block holds: they are packed, and a late failure still finds its own."""
    monkeypatch.setattr(columns, "BLOCK", 256)
    workers, rounds = 30, 50
    lines = fields_of(large_record(workers, rounds))
    model = folded(lines[:-1])
    late = {"kind": "attempt-failed", "round": 0, "shard": 7, "attempt": 0, "at": lines[-1]["at"]}
    model.take({**late, "worker": "worker-8", "failure": "store", "reason": "its file is damaged"})
    viewer, piecemeal = seen_at_once(model), Viewer()
    while piecemeal.seq < model.line:
        piecemeal.see(model.since(piecemeal.seq, min(model.line, piecemeal.seq + 500)))
    assert viewer.shown == piecemeal.shown
    assert len(viewer.rows("attempts")) == workers * rounds > 5 * columns.BLOCK
    number = next(row[0] for row in viewer.rows("attempts") if row[2:5] == [1, 7, 0])
    assert viewer.tables["ends"][number,][2] == "failed"


def test_a_live_feed_of_a_thousand_workers_takes_little() -> None:
    """Less than 20 kB/s a viewer, compressed, where they end a round every 10 seconds."""
    model, known, sent, tick = RecordTables(), 0, 0, 0.5
    lines = fields_of(large_record(1000, 3))
    begin = lines[0]["at"] + 2.0
    due = begin
    for line in lines[:-1]:
        while line["at"] >= due:
            if due > begin + 10:  # the first round has the names of all workers
                text = json.dumps(model.since(known, model.line), separators=(",", ":"))
                sent += len(event("frame", text, model.line).deflated)
            known, due = model.line, due + tick
        model.take(line)
    rate = sent / (due - begin - 10) / 1000
    assert 1 < rate < 20
