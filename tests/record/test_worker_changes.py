"""People see who joined late, who left, who was lost, and why."""

from __future__ import annotations

from downpour.record.record_lines import (
    AssignedLine,
    DisturbedLine,
    OtherPackagesLine,
    RecordLine,
    SubmittedLine,
    WorkerJoinedLine,
    WorkerLeftLine,
)
from downpour.record.tables import Tables
from downpour.record.timeline import worker_changes
from tests.specs import stored_spec


def joined(name: str) -> WorkerJoinedLine:
    """Say that a worker is there."""
    return WorkerJoinedLine(worker=name, address="127.0.0.1:1", numeric_class="any")


SUBMITTED = SubmittedLine(experiment="e", name="e", spec=stored_spec(), version="1", shards=1)


def test_who_is_lost_is_told_with_the_reason() -> None:
    """A worker that left by itself has another line."""
    record: list[tuple[float, RecordLine]] = [
        (5.0, SUBMITTED),
        (5.0, joined("w1")),
        (5.1, joined("w2")),
        (5.2, AssignedLine(round=0, shard=0, attempt=0, worker="w1", reason="idle")),
        (17.5, WorkerLeftLine(worker="w1", reason="no heartbeat for 10 s", lost=True)),
        (18.0, WorkerLeftLine(worker="w2", reason="told to stop", lost=False)),
        (20.0, joined("w1")),
    ]
    assert worker_changes(Tables.of(record)) == (
        "w1 was lost after 12.5 s: no heartbeat for 10 s",
        "w2 left after 13.0 s: told to stop",
        "w1 joined after 15.0 s",
    )


def test_a_worker_that_registers_with_the_next_manager_was_here_all_the_time() -> None:
    """A worker that registers again after a restart of the manager is not new."""
    record: list[tuple[float, RecordLine]] = [
        (5.0, SUBMITTED),
        (5.0, joined("w1")),
        (5.2, AssignedLine(round=0, shard=0, attempt=0, worker="w1", reason="idle")),
        (9.0, joined("w1")),
    ]
    assert worker_changes(Tables.of(record)) == ()


def test_a_disturbance_is_told_as_one_on_purpose() -> None:
    """Before its consequence, so that no one looks for another reason."""
    record: list[tuple[float, RecordLine]] = [
        (5.0, SUBMITTED),
        (6.0, DisturbedLine(who="w1", what="is killed and stays away")),
        (6.5, WorkerLeftLine(worker="w1", reason="its connection ended", lost=True)),
    ]
    assert worker_changes(Tables.of(record)) == (
        "w1 is killed and stays away on purpose, after 1.0 s",
        "w1 was lost after 1.5 s: its connection ended",
    )


def test_whose_packages_differ_is_told_with_both_versions() -> None:
    """It explains a task that fails on one machine alone, also when the run is over."""
    line = OtherPackagesLine(worker="w1", packages=("transformers 4.45, the manager 5.23",))
    said = worker_changes(Tables.of([(5.0, SUBMITTED), (6.0, line)]))
    assert said == ("w1 has transformers 4.45, the manager 5.23",)
