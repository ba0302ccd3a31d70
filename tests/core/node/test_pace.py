"""Heartbeats and snapshots follow the length of tasks, and cost little."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from downpour.base.values import AttemptId, PublishedFile, Snapshot
from downpour.core.node.attempt import (
    HeldAttempt,
    NextStep,
    PublishingPace,
    StepLoop,
    until_next_beat,
)

SECONDS = st.floats(min_value=0.0, max_value=1e6)

USUAL = st.floats(min_value=0.1, max_value=60.0)


def test_an_idle_worker_keeps_to_the_managers_interval() -> None:
    """Hundreds of them cost no more than before."""
    assert until_next_beat(1.0, None) == 1.0


def test_a_short_task_is_heard_of_twenty_times() -> None:
    """In a task of three seconds a worker sends seven heartbeats a second."""
    assert until_next_beat(1.0, 3.0) == 0.15


def test_a_task_is_as_long_as_its_own_steps_say() -> None:
    """Loading counts, and steps of a snapshot don't; before a step, it is as long as so far."""
    held = HeldAttempt(AttemptId(experiment="any", round=0, shard=0, attempt=0))
    held.began_at_seconds = 10.0
    assert held.progress().elapsed_seconds == 0.0
    held.loaded(40, 100, 14.0)
    assert held.expected_seconds(15.0) == 5.0
    held.stepped(41, 16.0)
    assert held.expected_seconds(17.0) == 6.0 + 59 * 6.0
    held.stepped(60, 22.0)
    assert held.expected_seconds(23.0) == 12.0 + 24.0
    assert held.progress().elapsed_seconds == 12.0


def test_bytes_are_counted_from_the_last_step() -> None:
    """What was read to begin does not count as published, nor do snapshots."""
    held = HeldAttempt(AttemptId(experiment="any", round=0, shard=0, attempt=0), moved_bytes=7)
    assert held.progress().moved_bytes == 7
    held.loaded(0, 1, 14.0)
    assert held.progress().moved_bytes == 0
    held.moved_bytes = 7
    held.stepped(1, 16.0)
    assert held.progress().moved_bytes == 0


@given(usual=USUAL, task=SECONDS)
def test_no_task_is_heard_of_more_than_ten_times_a_second(usual: float, task: float) -> None:
    """Nor less often than an idle worker."""
    assert 0.1 <= until_next_beat(usual, task) <= usual


@given(usual=USUAL, task=st.none() | SECONDS, least=SECONDS)
def test_no_worker_beats_more_often_than_it_is_asked_to(
    usual: float, task: float | None, least: float
) -> None:
    """And where that is seldom enough anyway, it changes nothing."""
    assert until_next_beat(usual, task, least) == max(least, until_next_beat(usual, task))


@given(usual=USUAL, one=SECONDS, other=SECONDS)
def test_a_longer_task_is_not_heard_of_more_often(usual: float, one: float, other: float) -> None:
    """So a long task costs no more than before."""
    short, long = sorted((one, other))
    assert until_next_beat(usual, short) <= until_next_beat(usual, long)


def training() -> HeldAttempt:
    """Make an attempt that is halfway."""
    held = HeldAttempt(AttemptId(experiment="any", round=0, shard=0, attempt=0))
    held.loaded(3, 10, 0.0)
    held.stepped(5, 1.0)
    return held


@given(st.floats(0.1, 100.0), st.floats(0.0, 4.0))
def test_saving_costs_half_a_percent_of_the_time_at_most(every: float, cost: float) -> None:
    """However long one takes, up to the time from which they would be too rare."""
    loop, now, spent = StepLoop(training(), every, 0.0), 0.0, 0.0
    for _ in range(20):
        now = max(now, loop.snapshot_due_at_seconds)
        assert loop.next(now) is NextStep.SAVE
        now, spent = now + cost, spent + cost
        loop.saved(now)
        assert loop.next(now) is NextStep.TRAIN or cost == 0.0
    assert spent <= 0.0051 * loop.snapshot_due_at_seconds


@pytest.mark.parametrize(
    ("took", "until_next"), [(0.01, 10.0), (1.0, 200.0), (15.0, 1610.0), (60.0, 3220.0)]
)
def test_a_slow_snapshot_delays_the_next_one(took: float, until_next: float) -> None:
    """By two hundred times what it took, less for a very slow one; a quick one by the interval."""
    loop = StepLoop(training(), 10.0, 0.0)
    assert loop.next(100.0) is NextStep.SAVE
    loop.saved(100.0 + took)
    assert loop.snapshot_due_at_seconds == pytest.approx(100.0 + took + until_next, abs=1.0)


@pytest.mark.parametrize(
    ("seconds", "state_bytes", "first"),
    [(15.0, None, 300.0), (15.0, 1500, 900.0), (15.0, 100, 300.0), (0.1, None, 10.0)],
)
def test_the_first_snapshot_waits_for_its_expected_cost(
    seconds: float, state_bytes: int | None, first: float
) -> None:
    """At most a twentieth of the time: the last result of 500 bytes says how long it will take."""
    state = None
    if state_bytes is not None:
        file = PublishedFile(name="state", size_bytes=state_bytes, checksum="0" * 32)
        state = Snapshot(file=file, steps_done=1, steps_total=2)
    pace = PublishingPace()
    pace.published(99.0, 500, state)
    pace.published(seconds, 500, None)
    loop = StepLoop(training(), 10.0, 0.0, pace.snapshot_seconds)
    assert loop.snapshot_due_at_seconds == pytest.approx(first)


def test_where_none_are_asked_for_there_are_none() -> None:
    """An interval of 0 means never."""
    assert StepLoop(training(), 0.0, 0.0).next(1e9) is NextStep.TRAIN


@pytest.mark.parametrize(("steps", "then"), [(3, NextStep.TRAIN), (10, NextStep.FINISH)])
def test_nothing_is_saved_at_either_end(steps: int, then: NextStep) -> None:
    """At the beginning it is what the attempt began with; at the end the update follows at once."""
    held = training()
    held.stepped(steps, 1.0)
    assert StepLoop(held, 1.0, 0.0).next(9.0) is then
