"""Heartbeats follow the length of tasks."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from downpour.base.values import AttemptId
from downpour.core.node.attempt import HeldAttempt, until_next_beat

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
