"""Who trained which shard when, as a record tells it."""

from __future__ import annotations

from pathlib import Path

from downpour.record.record_lines import (
    AssignedLine,
    AttemptFailedLine,
    DisturbedLine,
    RecordLine,
    ResourcesUsedLine,
    Sample,
    UpdatedLine,
)
from downpour.record.study_result import read_one
from downpour.record.tables import Tables
from downpour.record.timeline import attempt_spans, disturbed_seconds, resources

RECORDED = Path(__file__).parents[1] / "recorded" / "gestures"


def assigned(shard: int, attempt: int = 0, worker: str = "a") -> AssignedLine:
    """Assign a shard of the first round."""
    return AssignedLine(round=0, shard=shard, attempt=attempt, worker=worker, reason="")


def updated(shard: int, attempt: int = 0, worker: str = "a") -> UpdatedLine:
    """Publish its update."""
    return UpdatedLine(
        round=0,
        shard=shard,
        attempt=attempt,
        worker=worker,
        samples=1,
        steps=1,
        loss=0.0,
        load_seconds=0.0,
        train_seconds=1.0,
        publish_seconds=0.0,
        completion_seconds=1.0,
        bytes=1,
        checksum="",
    )


def failed(shard: int, attempt: int, failure: str = "lost") -> AttemptFailedLine:
    """Fail an attempt."""
    return AttemptFailedLine(
        round=0, shard=shard, attempt=attempt, worker="a", failure=failure, reason="gone"
    )


def test_attempts_begin_and_end_as_recorded() -> None:
    """Seconds count from the first assignment; each attempt has its outcome."""
    record: list[tuple[float, RecordLine]] = [
        (5.0, assigned(0)),
        (5.5, assigned(1, worker="b")),
        (7.0, failed(0, 0)),
        (7.5, assigned(0, attempt=1, worker="b")),
        (8.0, updated(1, worker="b")),
        (9.0, updated(0, attempt=1, worker="b")),
        (9.5, assigned(2)),
        (11.0, failed(9, 9)),
    ]
    told = [
        (s.worker, s.shard, s.begin_seconds, s.end_seconds, s.outcome, s.last)
        for s in attempt_spans(Tables.of(record))
    ]
    assert told == [
        ("a", 0, 0.0, 2.0, "failed", False),
        ("b", 1, 0.5, 3.0, "trained", False),
        ("b", 0, 2.5, 4.0, "trained", True),
        ("a", 2, 4.5, 6.0, "open", False),
    ]


def test_what_goes_on_elsewhere_has_not_failed() -> None:
    """Moves and copies that lost are told apart from failures, and a copy ends when it has lost."""
    record: list[tuple[float, RecordLine]] = [
        (0.0, assigned(0)),
        (0.0, assigned(1)),
        (1.0, failed(0, 0, "handed_over")),
        (1.0, assigned(0, attempt=1, worker="b")),
        (2.0, assigned(1, attempt=1, worker="c")),
        (2.0, assigned(0, attempt=2, worker="d")),
        (3.0, failed(0, 2, "cancelled")),
        (4.0, updated(1, attempt=1, worker="c")),
        (5.0, updated(0, attempt=1, worker="b")),
        (9.0, assigned(2)),
    ]
    told = {
        (s.shard, s.worker): (s.end_seconds, s.outcome) for s in attempt_spans(Tables.of(record))
    }
    assert told == {
        (0, "a"): (1.0, "moved"),
        (0, "b"): (5.0, "trained"),
        (0, "d"): (3.0, "stopped"),
        (1, "a"): (4.0, "stopped"),
        (1, "c"): (4.0, "trained"),
        (2, "a"): (9.0, "open"),
    }


def test_a_lone_shard_is_waited_for_by_nobody() -> None:
    """Only where there are several is one of them the last."""
    (alone,) = attempt_spans(Tables.of([(0.0, assigned(0)), (1.0, updated(0))]))
    assert not alone.last


def test_a_record_without_assignments_has_no_timeline() -> None:
    """An experiment that has not begun."""
    assert attempt_spans(Tables()) == ()
    assert resources(Tables()) == ()


def test_disturbances_count_from_the_first_assignment() -> None:
    """As attempts do; one before it has a second below 0."""
    killed = DisturbedLine(who="a", what="is killed")
    record: list[tuple[float, RecordLine]] = [
        (4.0, killed),
        (5.0, assigned(0)),
        (7.0, killed),
        (9.0, assigned(1)),
    ]
    assert disturbed_seconds(Tables.of(record)) == (-1.0, 2.0)


def test_a_recorded_experiment_is_read_as_a_study_of_one() -> None:
    """Its result and its attempts; there are no axes."""
    study = read_one(RECORDED)
    (subgrid,) = study.subgrids
    assert (study.name, subgrid.axes, study.done, study.asked) == ("gestures", (), 1, 1)
    assert subgrid.runs[0].attempt_spans
    assert subgrid.runs[0].has_uneven_data


def used(worker: str, *at_seconds: float) -> ResourcesUsedLine:
    """Say what an attempt of a worker used: half a core at these moments."""
    samples = tuple(Sample(at, 0.5, 10, 3, 0.1) for at in at_seconds)
    return ResourcesUsedLine(round=0, shard=0, attempt=0, worker=worker, samples=samples)


def test_samples_of_resources_come_in_the_order_of_time() -> None:
    """Of all attempts together, counted from the first assignment."""
    record: list[tuple[float, RecordLine]] = [
        (5.0, assigned(0)),
        (8.0, used("b", 6.0, 7.0)),
        (9.0, used("a", 6.5)),
    ]
    found = resources(Tables.of(record))
    assert [(s.worker, s.at_seconds) for s in found] == [("b", 1.0), ("a", 1.5), ("b", 2.0)]
    assert (found[0].cpu_share, found[0].memory_bytes) == (0.5, 10)
    assert (found[0].threads, found[0].io_wait) == (3, 0.1)


def test_an_update_that_was_lost_ends_its_attempt_when_it_was_published() -> None:
    """A manager that crashed noticed it later; the task is then open, and trained once more."""
    record: list[tuple[float, RecordLine]] = [
        (1.0, assigned(0)),
        (3.0, updated(0)),
        (60.0, failed(0, 0, "store")),
        (61.0, assigned(0, attempt=1)),
        (62.0, assigned(1, worker="b")),
    ]
    lost, again, _ = attempt_spans(Tables.of(record))
    assert (lost.end_seconds, lost.outcome) == (2.0, "failed")
    assert (again.end_seconds, again.outcome) == (61.0, "open")
    spans = attempt_spans(Tables.of([*record, (64.0, updated(0, attempt=1))]))
    assert [span.outcome for span in spans] == ["failed", "trained", "open"]
