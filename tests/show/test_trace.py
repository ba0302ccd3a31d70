"""A trace of an experiment, checked against what the format demands and what the record says."""

import json
import math
from collections import Counter, defaultdict
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import downpour
from downpour.files.store.layout import RECORD_NAME
from downpour.network.rpc.messages import Status
from downpour.record import Result
from downpour.record import record_lines as told
from downpour.record.record import read_record
from downpour.record.tables import Tables
from downpour.record.timeline import attempt_spans
from downpour.show.trace import trace_lines
from downpour.show.tracks import TraceEvent, Track, lanes
from tests.record.lines import (
    aggregated,
    assigned,
    dated,
    failed,
    joined,
    left,
    saved,
    submitted,
    updated,
)

RECORDED = Path(__file__).parents[1] / "recorded"
Record = Sequence[told.Dated]
Event = dict[str, Any]

REQUIRED: dict[str, dict[str, type]] = {
    "X": {"name": str, "pid": int, "tid": int, "ts": int, "dur": int},
    "i": {"name": str, "pid": int, "tid": int, "ts": int, "s": str},
    "C": {"name": str, "pid": int, "ts": int, "args": dict},
    "s": {"name": str, "cat": str, "id": int, "pid": int, "tid": int, "ts": int},
    "f": {"name": str, "cat": str, "id": int, "pid": int, "tid": int, "ts": int, "bp": str},
    "M": {"name": str, "pid": int, "args": dict},
}
"""What the Trace Event Format wants of each phase."""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Record, list[str]]:
    """The record of a small run with two workers, and a trace as it was before the run ended."""
    shared = tmp_path_factory.mktemp("shared")
    early: list[str] = []

    def look(_: Status) -> None:
        (folder,) = (shared / "experiments").iterdir()
        if not (folder / RECORD_NAME).exists():
            early.append("".join(trace_lines(read_record(folder / RECORD_NAME))))

    fields = {"dataset": "digits", "model": "mlp", "shards": 3, "epochs": 2, "train_limit": 300}
    result = downpour.run(fields, workers=2, shared=shared, on="inline", on_status=look)
    return read_record(shared / "experiments" / result.experiment / RECORD_NAME), early


@pytest.fixture(params=["handoff", "gestures", "run"])
def record(request: pytest.FixtureRequest) -> Record:
    """Recorded experiments with hand-overs, copies and failures, and one that has just ended."""
    if request.param == "run":
        found: tuple[Record, list[str]] = request.getfixturevalue("run")
        return found[0]
    return read_record(RECORDED / request.param / RECORD_NAME)


def traced(record: Record) -> list[Event]:
    """Return the events of a trace that the format allows."""
    return events_of("".join(trace_lines(record)))


def events_of(text: str) -> list[Event]:
    """Read a trace, and see that each event has what its phase needs, of the right type."""

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    trace = json.loads(text, parse_constant=refuse)
    assert trace["displayTimeUnit"] == "ms"
    events: list[Event] = trace["traceEvents"]
    for event in events:
        for key, kind in REQUIRED[event["ph"]].items():
            assert type(event.get(key)) is kind, (key, event)
        assert event.get("ts", 0) >= 0
        assert event.get("dur", 0) >= 0
        if event["ph"] == "C":
            assert all(math.isfinite(value) for value in event["args"].values())
            assert event["args"]
    return events


def attempts(events: Sequence[Event]) -> list[Event]:
    """The slices of workers."""
    return [event for event in events if event["ph"] == "X" and "attempt" in event["args"]]


def names(events: Sequence[Event], what: str) -> dict[int, str]:
    """The names of processes, or of threads."""
    return {event["pid"]: event["args"]["name"] for event in events if event["name"] == what}


def instants(events: Sequence[Event]) -> list[tuple[str, int, str | None]]:
    """What happened at a moment: its name, when, and why."""
    return [
        (event["name"], event["ts"], event.get("args", {}).get("reason"))
        for event in events
        if event["ph"] == "i"
    ]


def test_every_attempt_is_one_slice_and_an_accepted_update_one_that_trained(record: Record) -> None:
    """Each with its worker, its times and the reason of its assignment."""
    events = traced(record)
    workers = names(events, "process_name")
    shown = Counter(
        (e["args"]["round"], e["args"]["shard"], e["args"]["attempt"]) for e in attempts(events)
    )
    given = [line for _, line in record if isinstance(line, told.AssignedLine)]
    assert shown == Counter((line.round + 1, line.shard, line.attempt) for line in given)
    tasks = Result.from_record(record).tasks
    trained = [e for e in attempts(events) if e["args"]["outcome"] == "trained"]
    assert sorted((t.round, t.shard, t.attempt, t.worker) for t in tasks) == sorted(
        (e["args"]["round"], e["args"]["shard"], e["args"]["attempt"], _bare(workers[e["pid"]]))
        for e in trained
    )
    reasons = {(line.round + 1, line.shard, line.attempt): line.reason for line in given}
    for event in attempts(events):
        args = event["args"]
        assert args["why_assigned"] == reasons[args["round"], args["shard"], args["attempt"]]


def _bare(process: str) -> str:
    return process.partition(" (")[0]


def test_times_are_those_of_the_timeline(record: Record) -> None:
    """In microseconds, beginning with the first assignment at zero."""
    spans = attempt_spans(Tables.of(record))
    shown = sorted((e["ts"], e["ts"] + e["dur"]) for e in attempts(traced(record)))
    wanted = sorted((s.begin_seconds * 1e6, s.end_seconds * 1e6) for s in spans)
    assert shown[0][0] == 0
    for times, expected in zip(shown, wanted, strict=True):
        assert times == pytest.approx(expected, abs=1)


def test_events_come_in_order_of_time(record: Record) -> None:
    """After the names of the tracks, which have no time."""
    times = [event["ts"] for event in traced(record) if event["ph"] != "M"]
    assert times == sorted(times)


def test_slices_of_a_track_do_not_overlap(record: Record) -> None:
    """And workers need one track each, because they train one shard at a time."""
    events = traced(record)
    until: defaultdict[tuple[int, int], int] = defaultdict(int)
    for event in (event for event in events if event["ph"] == "X"):
        place = event["pid"], event["tid"]
        assert event["ts"] >= until[place], event
        until[place] = event["ts"] + event["dur"]
    assert len({(e["pid"], e["tid"]) for e in attempts(events)}) == len(
        {e["pid"] for e in attempts(events)}
    )


def test_every_track_has_a_name(record: Record) -> None:
    """The manager's first, then the workers with their hosts, as people count."""
    events = traced(record)
    called = {(e["pid"], e["tid"]) for e in events if e["name"] == "thread_name"}
    drawn = {(e["pid"], e["tid"]) for e in events if e["ph"] in "Xi"}
    assert drawn <= called
    processes = names(events, "process_name")
    assert processes.pop(1) == "manager"
    joined = {line.worker for _, line in record if isinstance(line, told.WorkerJoinedLine)}
    assert set(processes.values()) == {f"{worker} (127.0.0.1)" for worker in joined}


def test_arrows_join_slices_that_are_there(record: Record) -> None:
    """As readers tie them: to the slice of the track that is open at that time."""
    events = traced(record)
    ends = {e["id"]: e for e in events if e["ph"] == "f"}
    starts = {e["id"]: e for e in events if e["ph"] == "s"}
    assert starts.keys() == ends.keys()
    for number, start in starts.items():
        (before,), (after,) = around(events, start), around(events, ends[number])
        assert (start["name"], start["cat"]) == (ends[number]["name"], ends[number]["cat"])
        assert start["ts"] <= ends[number]["ts"]
        assert before is not after
        assert before["name"] == after["name"]
        assert after["ts"] == ends[number]["ts"]


def around(events: Sequence[Event], end: Event) -> list[Event]:
    """The slices that are open where an arrow begins or ends."""
    return [
        event
        for event in attempts(events)
        if (event["pid"], event["tid"]) == (end["pid"], end["tid"])
        and event["ts"] <= end["ts"] < event["ts"] + event["dur"]
    ]


def test_a_hand_over_is_an_arrow_from_its_worker_to_the_next() -> None:
    """With the decision, in its words, on the manager's track."""
    events = traced(read_record(RECORDED / "handoff" / RECORD_NAME))
    ((start, end),) = [(s, f) for s in events for f in events if (s["ph"], f["ph"]) == ("s", "f")]
    workers = names(events, "process_name")
    assert (_bare(workers[start["pid"]]), _bare(workers[end["pid"]])) == ("d", "a")
    ((after,), (before,)) = around(events, end), around(events, start)
    assert (before["args"]["outcome"], after["args"]["from_step"]) == ("moved", 25)
    assert after["args"]["forecast_median_seconds"] == 7.6
    assert instants(events) == [
        ("hand over from d to a", 10_000_000, "d would take 29 s more than the others"),
        ("snapshot at step 25", 10_200_000, None),
        ("close round 3 without shards 2", 50_200_000, "three of four are there"),
        ("finished", 50_600_000, None),
    ]


def test_a_run_has_its_rounds_its_versions_and_its_measurements(record: Record) -> None:
    """One slice each on the manager's tracks; counters show every evaluation."""
    events = traced(record)
    named = Counter(event["name"] for event in events if event["ph"] == "X")
    result = Result.from_record(record)
    measured = [line for _, line in record if isinstance(line, told.EvaluatedLine)]
    for done in result.rounds:
        assert named[f"round {done.round}"] == named[f"version {done.round}"] == 1
    assert sum(count for name, count in named.items() if "evaluation" in name) == len(measured)
    shown = [e["args"]["value"] for e in events if e["name"] == "test accuracy, %"]
    assert shown == pytest.approx([100 * line.metrics["accuracy"] for line in measured])


def test_updates_wait_until_a_version_takes_them(record: Record) -> None:
    """They never count below zero, and none is left in the end."""
    waiting = [e["args"]["value"] for e in traced(record) if e["name"] == "updates waiting"]
    assert (waiting[0], waiting[-1], min(waiting)) == (0, 0, 0)
    shards = {line.shard for _, line in record if isinstance(line, told.UpdatedLine)}
    assert 0 < max(waiting) <= len(shards)


def test_a_trace_can_be_made_while_the_experiment_runs(run: tuple[Record, list[str]]) -> None:
    """From its journal, at any moment; the attempts so far stay those of the last trace."""
    record, early = run
    assert early
    begun = {(event["ts"], event["name"]) for event in attempts(traced(record))}
    for text in early:
        assert {(event["ts"], event["name"]) for event in attempts(events_of(text))} <= begun


def test_failures_and_workers_that_go_are_seen_at_once() -> None:
    """A worker that came later, too; each on the track of its worker."""
    record: list[told.Dated] = [
        (1.0, joined("a", address="[::1]:70")),
        (2.0, assigned(0)),
        (3.0, failed(0, 0)),
        (3.0, left("a", "silent", lost=True)),
        (4.0, joined("b", address="n1:70")),
        (4.0, assigned(0, attempt=1, worker="b")),
        (5.0, left("b", "asked to")),
        (5.0, failed(0, 1, "withdrawn")),
        (6.0, told.WorkerRequestedLine(reason="too few")),
        (6.0, told.DisturbedLine(who="b", what="is killed")),
        (6.0, told.ResizedLine(round=0, samples=(3, 4), reason="b is slow")),
        (7.0, told.CancelledLine(reason="enough")),
    ]
    events = traced(record)
    assert instants(events) == [
        ("failed: lost", 1_000_000, "gone"),
        ("worker lost", 1_000_000, "silent"),
        ("worker joined", 2_000_000, None),
        ("worker left", 3_000_000, "asked to"),
        ("ask for one more worker", 4_000_000, "too few"),
        ("disturb b", 4_000_000, None),
        ("resize round 1", 4_000_000, "b is slow"),
        ("cancelled", 5_000_000, "enough"),
    ]
    assert names(events, "process_name") == {1: "manager", 2: "a (::1)", 3: "b (n1)"}
    assert {e["name"]: e["pid"] for e in events if e["ph"] == "i"}["worker lost"] == 2


def test_an_arrow_begins_at_the_attempt_whose_snapshot_went_on() -> None:
    """Not at one in between that saved nothing, nor where a failed shard begins anew."""
    record: list[told.Dated] = [(0.0, assigned(0)), (1.0, saved(0, 0, 5)), (2.0, failed(0, 0))]
    for number, worker, step in ((1, "b", 5), (2, "c", 5), (3, "d", 0)):
        again, end = assigned(0, number, worker, from_step=step), failed(0, number, worker=worker)
        record += [(3.0 * number, again), (3.0 * number + 1, end)]
    events = traced(record)
    arrows = [
        (around(events, s)[0]["args"]["attempt"], around(events, f)[0]["args"]["attempt"])
        for s in events
        for f in events
        if s["ph"] == "s" and f["ph"] == "f" and s["id"] == f["id"]
    ]
    assert arrows == [(0, 1), (0, 2)]


def test_an_attempt_that_took_no_time_still_has_its_arrow() -> None:
    """It is drawn a microsecond long, because an arrow to an empty slice would be lost."""
    record: list[told.Dated] = [
        (0.0, assigned(0)),
        (0.0, failed(0, 0, "handed_over")),
        (0.0, assigned(0, attempt=1, worker="b")),
        (9.0, updated(0, attempt=1, worker="b")),
    ]
    events = traced(record)
    start, end = (next(e for e in events if e["ph"] == phase) for phase in "sf")
    assert len(around(events, start)) == len(around(events, end)) == 1


def test_attempts_that_overlap_take_a_second_track() -> None:
    """A worker that a new manager has given something else may be believed to do both."""
    record: list[told.Dated] = [
        (0.0, assigned(0)),
        (1.0, assigned(1)),
        (2.0, updated(0)),
        (3.0, updated(1)),
    ]
    events = traced(record)
    assert [e["tid"] for e in attempts(events)] == [1, 2]
    threads = [e["args"]["name"] for e in events if e["name"] == "thread_name" and e["pid"] == 2]
    assert threads == ["attempts", "attempts (2)", "events"]


def test_versions_out_of_step_take_the_updates_that_they_name() -> None:
    """A round lasts until the last version that has an update of it."""

    def version(number: int, *parts: tuple[int, int]) -> told.AggregatedLine:
        staleness = (0,) * len(parts)
        return aggregated(number - 1, loss=math.nan, parts=parts, staleness=staleness)

    record: list[told.Dated] = [
        (0.0, assigned(0)),
        (0.0, assigned(1, worker="b")),
        (1.0, updated(0)),
        (2.0, version(1, (0, 0))),
        (4.0, updated(1, worker="b")),
        (5.0, version(2, (0, 1))),
    ]
    events = traced(record)
    (whole,) = [e for e in events if e["name"] == "round 1"]
    assert (whole["ts"], whole["dur"]) == (0, 5_000_000)
    waiting = [(e["ts"], e["args"]["value"]) for e in events if e["name"] == "updates waiting"]
    assert waiting == [(0, 0), (1_000_000, 1), (2_000_000, 0), (4_000_000, 1), (5_000_000, 0)]
    assert not [e for e in events if e["name"] == "training loss"]


def test_an_update_that_was_lost_waits_no_longer() -> None:
    """A manager that crashed had accepted it; its file is gone."""
    record: list[told.Dated] = [(0.0, assigned(0)), (1.0, updated(0)), (2.0, failed(0, 0, "store"))]
    events = traced(record)
    waiting = [e["args"]["value"] for e in events if e["name"] == "updates waiting"]
    assert waiting == [0, 1, 0]
    assert [e["args"]["outcome"] for e in attempts(events)] == ["failed"]


@pytest.mark.parametrize(
    "lines", [[], [submitted()], [submitted(), told.CancelledLine(reason="enough")]]
)
def test_an_experiment_that_has_not_begun_has_a_trace_without_attempts(
    lines: list[told.RecordLine],
) -> None:
    """It says which experiment it is of, and how it ended."""
    text = "".join(trace_lines(dated(*lines)))
    events = events_of(text)
    assert json.loads(text)["otherData"]["experiment"] == ("e" if lines else "")
    assert not attempts(events)
    assert instants(events) == ([("cancelled", 1_000_000, "enough")] if len(lines) > 1 else [])


def test_names_from_elsewhere_stay_one_line_of_plain_text() -> None:
    """Workers name themselves, and errors are quoted from their programs."""
    odd = 'a"\n\x1b[31m\ud800</script>'
    record: list[told.Dated] = [(0.0, assigned(0, worker=odd))]
    (named,) = [n for p, n in names(traced(record), "process_name").items() if p > 1]
    assert named.isprintable()
    assert named.startswith('a" ')


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 20))))
def test_a_track_is_never_used_twice_at_a_time(times: list[tuple[int, int]]) -> None:
    """And there are no more tracks than spans that overlap at some moment."""
    spans = sorted((begin, begin + length) for begin, length in times)
    chosen = lanes(spans)
    by_lane = defaultdict(list)
    for span, lane in zip(spans, chosen, strict=True):
        by_lane[lane].append(span)
    for several in by_lane.values():
        assert all(a[1] <= b[0] for a, b in pairwise(several))
    most = max((sum(a <= at < max(b, a + 1) for a, b in spans) for at, _ in spans), default=0)
    assert len(by_lane) <= most


@given(st.floats(), st.text())
def test_every_event_is_one_line_of_strict_json(number: float, text: str) -> None:
    """Whatever was measured, and whatever a name holds."""
    event = TraceEvent(phase="i", name=text, track=Track(1), args={"n": number, "t": text})
    line = event.to_json()
    assert line.isascii()
    assert "\n" not in line
    assert json.loads(line)["args"].get("n", number) == number or not math.isfinite(number)
