"""When a worker publishes a snapshot: rarely enough that it costs little."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from downpour.base.values import AttemptId
from downpour.core.node.attempt import HeldAttempt, SnapshotSchedule


def training() -> HeldAttempt:
    """Make an attempt that is halfway."""
    held = HeldAttempt(AttemptId(experiment="any", round=0, shard=0, attempt=0))
    held.loaded(3, 10, 0.0)
    held.stepped(5, 1.0)
    return held


@given(st.floats(0.1, 100.0), st.floats(0.0, 10.0))
def test_saving_costs_half_a_percent_of_the_time_at_most(every: float, cost: float) -> None:
    """However long one takes."""
    pace, now, spent = SnapshotSchedule(every, 0.0), 0.0, 0.0
    for _ in range(20):
        now = max(now, pace.due_at_seconds)
        assert pace.is_due(training(), now)
        pace.saved(now, now + cost)
        now, spent = now + cost, spent + cost
        assert not pace.is_due(training(), now) or cost == 0.0
    assert spent <= 0.0051 * pace.due_at_seconds


def test_a_slow_snapshot_delays_the_next_one() -> None:
    """By two hundred times what it took; a quick one by the interval."""
    pace = SnapshotSchedule(10.0, 0.0)
    pace.saved(100.0, 101.0)
    assert pace.due_at_seconds == 101.0 + 200.0
    pace.saved(301.0, 301.01)
    assert pace.due_at_seconds == 301.01 + 10.0


def test_where_none_are_asked_for_there_are_none() -> None:
    """An interval of 0 means never."""
    assert not SnapshotSchedule(0.0, 0.0).is_due(training(), 1e9)


@pytest.mark.parametrize("steps", [3, 10])
def test_nothing_is_saved_at_either_end(steps: int) -> None:
    """At the beginning it is what the attempt began with; at the end the update follows at once."""
    held = training()
    held.stepped(steps, 1.0)
    assert not SnapshotSchedule(1.0, 0.0).is_due(held, 9.0)
