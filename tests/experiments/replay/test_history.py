"""What a record says of how a model came about, whatever happened meanwhile."""

import pytest

from downpour.base.errors import FileCorrupt
from downpour.experiments.replay_history import TrainedTask, history_of
from downpour.record import record_lines as told
from tests.record.lines import (
    aggregated,
    dated,
    failed,
    folded,
    joined,
    prepared,
    submitted,
    updated,
)

BEGUN = submitted(), prepared(5, 5, numeric_class="manager's", dataset="key", checksum="m0")


def trained(number: int, shard: int, attempt: int = 0) -> told.UpdatedLine:
    """An update whose checksum names its round, shard and attempt."""
    checksum = f"u{number}{shard}{attempt}"
    return updated(shard, attempt, "w", round=number, checksum=checksum)


def tasks_of(*lines: told.RecordLine) -> list[tuple[TrainedTask, ...]]:
    """Return the tasks of each version that lines after the beginning tell of."""
    history = history_of(folded(*dated(*BEGUN, *lines)))
    return [version.tasks for version in history.versions]


def test_in_step_a_version_is_made_of_its_round() -> None:
    """Each task began from the version before; what was dropped is no part of it."""
    lines: list[told.RecordLine] = [
        joined("w", "wide"),
        trained(0, 1),
        trained(0, 0),
        aggregated(0),
        trained(1, 1),
        told.DroppedLine(round=1, shards=(0,), reason="late"),
        aggregated(1),
    ]
    first, second = tasks_of(*lines)
    assert [(t.shard, t.base, t.checksum) for t in first] == [(0, 0, "u000"), (1, 0, "u010")]
    assert [(t.shard, t.base, t.numeric_class) for t in second] == [(1, 1, "wide")]


def test_versions_that_were_added_in_another_order_are_known() -> None:
    """Those of earlier releases; one update has no order."""
    lines: list[told.RecordLine] = [trained(0, 0), trained(0, 1), aggregated(0)]
    lines += [trained(1, 0), trained(1, 1), aggregated(1, summed="tree")]
    lines += [trained(2, 1), told.DroppedLine(round=2, shards=(0,), reason="late"), aggregated(2)]
    versions = history_of(folded(*dated(*BEGUN, *lines))).versions
    assert [version.summed_otherwise for version in versions] == [True, False, False]


def test_out_of_step_the_line_names_tasks_and_their_bases() -> None:
    """A stale task began that many versions before; the worker's class is that of its time."""
    lines: list[told.RecordLine] = [
        joined("w", "old machine"),
        trained(0, 0),
        aggregated(0, parts=((0, 0),), staleness=(0,)),
        joined("w", "new machine"),
        trained(1, 0),
        trained(0, 1),
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
    lines: list[told.RecordLine] = [
        told.ResizedLine(round=0, samples=(7, 3), reason="slow"),
        trained(0, 0),
        trained(0, 1),
        aggregated(0),
        trained(1, 0),
        aggregated(1),
    ]
    first, second = tasks_of(*lines)
    assert [task.portion for task in (*first, *second)] == [(0, 7), (7, 10), None]


def test_a_refused_update_does_not_count() -> None:
    """The shard was trained again, or dropped."""
    refused = failed(0, 0, "store")
    again = tasks_of(trained(0, 0), refused, trained(0, 0, attempt=1), aggregated(0))
    assert [task.checksum for task in again[0]] == ["u001"]
    dropped = tasks_of(trained(0, 0), refused, trained(0, 1), aggregated(0))
    assert [task.shard for task in dropped[0]] == [1]


def test_a_version_that_is_recorded_twice_counts_once() -> None:
    """A manager that took over may repeat a version; the later line counts."""
    [tasks] = tasks_of(trained(0, 0), aggregated(0, checksum="lost"), aggregated(0))
    assert len(tasks) == 1
    history = history_of(
        folded(*dated(*BEGUN, trained(0, 0), aggregated(0, checksum="x"), aggregated(0)))
    )
    assert [version.line.checksum for version in history.versions] == ["m1"]


def test_a_cancelled_experiment_has_no_result() -> None:
    """Its versions can be made again all the same."""
    ended = told.CancelledLine(reason="enough")
    history = history_of(folded(*dated(*BEGUN, ended)))
    assert (history.ended, history.versions, history.prepared.checksum) == (ended, (), "m0")
    assert history.numeric_classes == {"manager's"}


@pytest.mark.parametrize(
    ("lines", "reason"),
    [
        ([aggregated(1)], "does not say which updates made version 1"),
        ([aggregated(0, parts=((0, 0),), staleness=(0,))], "who trained round 0 shard 0"),
        ([trained(0, 0), aggregated(0, parts=((0, 0),))], None),
        ([trained(0, 0), aggregated(0, staleness=(0, 0))], "which version 1 was made from"),
        ([trained(0, 0), aggregated(0, parts=((0, 0),), staleness=(9,))], "does not say"),
    ],
)
def test_a_record_with_gaps_is_refused(lines: list[told.RecordLine], reason: str | None) -> None:
    """A machine that lost its power may have lost lines; earlier records have no staleness."""
    if reason is None:
        assert tasks_of(*lines)
        return
    with pytest.raises(FileCorrupt, match=reason):
        tasks_of(*lines)
