"""What a record says of how a model came about, whatever happened meanwhile."""

from __future__ import annotations

from typing import Any

import pytest

from downpour.base.errors import FileCorrupt
from downpour.experiments.reproduction.history import TrainedTask, history_of
from downpour.record.record_lines import (
    AggregatedLine,
    AttemptFailedLine,
    CancelledLine,
    DroppedLine,
    PreparedLine,
    RecordLine,
    ResizedLine,
    SubmittedLine,
    UpdatedLine,
    WorkerJoinedLine,
)
from downpour.record.tables import Tables
from tests.specs import stored_spec


def tables(*lines: RecordLine) -> Tables:
    """Fold lines of one moment."""
    return Tables.of((0.0, line) for line in lines)


def submitted() -> SubmittedLine:
    """Two shards."""
    return SubmittedLine(experiment="e", name="e", spec=stored_spec(seed=0), version="1", shards=2)


def prepared() -> PreparedLine:
    """A dataset, and the initial model."""
    return PreparedLine(
        train_samples=10,
        test_samples=1,
        classes=2,
        shard_samples=(5, 5),
        prepare_seconds=0.0,
        split_seconds=0.0,
        bytes=1,
        parameters=1,
        numeric_class="manager's",
        dataset="key",
        checksum="m0",
    )


def joined(worker: str, numeric_class: str) -> WorkerJoinedLine:
    """A worker."""
    return WorkerJoinedLine(worker=worker, address="a:1", numeric_class=numeric_class)


def updated(number: int, shard: int, attempt: int = 0, worker: str = "w") -> UpdatedLine:
    """An update whose checksum tells what it is of."""
    rest: dict[str, Any] = {"samples": 5, "steps": 1, "loss": 1.0, "completion_seconds": 0.0}
    rest |= {"load_seconds": 0.0, "train_seconds": 0.0, "publish_seconds": 0.0}
    checksum = f"u{number}{shard}{attempt}"
    return UpdatedLine(
        round=number,
        shard=shard,
        attempt=attempt,
        worker=worker,
        bytes=1,
        checksum=checksum,
        **rest,
    )


def aggregated(number: int, **changes: Any) -> AggregatedLine:
    """A version, numbered from 0 as records have it."""
    fields: dict[str, Any] = {"bytes": 1, "seconds": 0.0, "train_seconds": 0.0, "loss": 1.0}
    name, checksum = f"model-{number + 1}", f"m{number + 1}"
    fields |= {"file": name, "checksum": checksum, "summed": "", "whole": True, **changes}
    return AggregatedLine(round=number, version=number + 1, **fields)


def tasks_of(*lines: RecordLine) -> list[tuple[TrainedTask, ...]]:
    """Return the tasks of each version that lines after the beginning tell of."""
    history = history_of(tables(submitted(), prepared(), *lines))
    return [version.tasks for version in history.versions]


def test_in_step_a_version_is_made_of_its_round() -> None:
    """Each task began from the version before; what was dropped is no part of it."""
    lines: list[RecordLine] = [
        joined("w", "wide"),
        updated(0, 1),
        updated(0, 0),
        aggregated(0),
        updated(1, 1),
        DroppedLine(round=1, shards=(0,), reason="late"),
        aggregated(1),
    ]
    first, second = tasks_of(*lines)
    assert [(t.shard, t.base, t.checksum) for t in first] == [(0, 0, "u000"), (1, 0, "u010")]
    assert [(t.shard, t.base, t.numeric_class) for t in second] == [(1, 1, "wide")]


def test_versions_that_were_added_in_another_order_are_known() -> None:
    """Those of earlier releases; one update has no order."""
    lines: list[RecordLine] = [updated(0, 0), updated(0, 1), aggregated(0)]
    lines += [updated(1, 0), updated(1, 1), aggregated(1, summed="tree")]
    lines += [updated(2, 1), DroppedLine(round=2, shards=(0,), reason="late"), aggregated(2)]
    versions = history_of(tables(submitted(), prepared(), *lines)).versions
    assert [version.summed_otherwise for version in versions] == [True, False, False]


def test_out_of_step_the_line_names_tasks_and_their_bases() -> None:
    """A stale task began that many versions before; the worker's class is that of its time."""
    lines: list[RecordLine] = [
        joined("w", "old machine"),
        updated(0, 0),
        aggregated(0, parts=((0, 0),), staleness=(0,)),
        joined("w", "new machine"),
        updated(1, 0),
        updated(0, 1),
        aggregated(1, parts=((0, 1),), staleness=(1,)),
        aggregated(2, parts=((1, 0),), staleness=(1,)),
    ]
    versions = tasks_of(*lines)
    assert [[(t.round, t.shard, t.base) for t in one] for one in versions] == [
        [(0, 0, 0)],
        [(0, 1, 0)],
        [(1, 0, 1)],
    ]
    assert [one[0].numeric_class for one in versions] == [
        "old machine",
        "new machine",
        "new machine",
    ]


def test_a_round_that_was_cut_anew_has_portions() -> None:
    """Of the samples of all shards, one after the other; other rounds have none."""
    lines: list[RecordLine] = [
        ResizedLine(round=0, samples=(7, 3), reason="slow"),
        updated(0, 0),
        updated(0, 1),
        aggregated(0),
        updated(1, 0),
        aggregated(1),
    ]
    first, second = tasks_of(*lines)
    assert [task.portion for task in (*first, *second)] == [(0, 7), (7, 10), None]


def test_a_refused_update_does_not_count() -> None:
    """The shard was trained again, or dropped."""
    refused = AttemptFailedLine(
        round=0, shard=0, attempt=0, worker="w", failure="store", reason="altered"
    )
    again = tasks_of(updated(0, 0), refused, updated(0, 0, attempt=1), aggregated(0))
    assert [task.checksum for task in again[0]] == ["u001"]
    dropped = tasks_of(updated(0, 0), refused, updated(0, 1), aggregated(0))
    assert [task.shard for task in dropped[0]] == [1]


def test_what_was_recorded_twice_counts_once() -> None:
    """A manager that took over may repeat a version; the later line counts."""
    [tasks] = tasks_of(updated(0, 0), aggregated(0, checksum="lost"), aggregated(0))
    assert len(tasks) == 1
    begun: list[RecordLine] = [submitted(), prepared(), updated(0, 0)]
    history = history_of(tables(*begun, aggregated(0, checksum="x"), aggregated(0)))
    assert [version.checksum for version in history.versions] == ["m1"]


def test_a_cancelled_experiment_has_no_result() -> None:
    """Its versions can be made again all the same."""
    history = history_of(tables(submitted(), prepared(), CancelledLine(reason="enough")))
    assert (history.has_ended, history.result, history.versions) == (True, None, ())
    assert history.first_checksum == "m0"
    assert history.numeric_classes == {"manager's"}


@pytest.mark.parametrize(
    ("lines", "reason"),
    [
        ([aggregated(1)], "does not say which updates made version 1"),
        ([aggregated(0, parts=((0, 0),), staleness=(0,))], "who trained round 0 shard 0"),
        ([updated(0, 0), aggregated(0, parts=((0, 0),))], None),
        ([updated(0, 0), aggregated(0, staleness=(0, 0))], "which version 1 was made from"),
        ([updated(0, 0), aggregated(0, parts=((0, 0),), staleness=(9,))], "does not say"),
    ],
)
def test_a_record_with_gaps_is_refused(lines: list[RecordLine], reason: str | None) -> None:
    """A machine that lost its power may have lost lines; earlier records have no staleness."""
    if reason is None:
        assert tasks_of(*lines)
        return
    with pytest.raises(FileCorrupt, match=reason):
        tasks_of(*lines)
