"""Heartbeats and snapshots follow the length of tasks; and what comes next between two steps."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from downpour.base.values import Snapshot
from downpour.core.node.attempt import (
    HeldAttempt,
    NextStep,
    PublishingPace,
    StepLoop,
    until_next_beat,
)
from tests.specs import SNAPSHOT, plain_attempt, plain_file

SECONDS = st.floats(min_value=0.0, max_value=1e6)

USUAL = st.floats(min_value=0.1, max_value=60.0)


def loaded(before: int = 0, total: int = 4, done: int = 0) -> tuple[HeldAttempt, StepLoop]:
    """Make an attempt that begins at step `before` and takes a snapshot every ten seconds."""
    held = HeldAttempt(plain_attempt())
    held.loaded(before, total, 0.0)
    held.stepped(max(before, done), 0.0)
    return held, StepLoop(held, 10.0, 0.0)


def test_an_idle_worker_keeps_to_the_managers_interval() -> None:
    """Hundreds of them cost no more than before."""
    assert until_next_beat(1.0, None) == 1.0


def test_a_short_task_is_heard_of_twenty_times() -> None:
    """In a task of three seconds a worker sends seven heartbeats a second."""
    assert until_next_beat(1.0, 3.0) == 0.15


def test_a_task_is_as_long_as_its_own_steps_say() -> None:
    """Loading counts, and steps of a snapshot don't; before a step, it is as long as so far."""
    held = HeldAttempt(plain_attempt())
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
    held = HeldAttempt(plain_attempt(), moved_bytes=7)
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


@given(st.floats(0.1, 100.0), st.floats(0.0, 4.0))
def test_saving_costs_half_a_percent_of_the_time_at_most(every: float, cost: float) -> None:
    """However long one takes, up to the time from which they would be too rare."""
    loop, now, spent = StepLoop(loaded(3, 10, 5)[0], every, 0.0), 0.0, 0.0
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
    _, loop = loaded(3, 10, 5)
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
        state = Snapshot(file=plain_file("state", state_bytes), steps_done=1, steps_total=2)
    pace = PublishingPace()
    pace.published(99.0, 500, state)
    pace.published(seconds, 500, None)
    loop = StepLoop(loaded(3, 10, 5)[0], 10.0, 0.0, pace.snapshot_seconds)
    assert loop.snapshot_due_at_seconds == pytest.approx(first)


def test_where_none_are_asked_for_there_are_none() -> None:
    """An interval of 0 means never."""
    assert StepLoop(loaded(3, 10, 5)[0], 0.0, 0.0).next(1e9) is NextStep.TRAIN


@pytest.mark.parametrize(("steps", "then"), [(3, NextStep.TRAIN), (10, NextStep.FINISH)])
def test_nothing_is_saved_at_either_end(steps: int, then: NextStep) -> None:
    """At the beginning it is what the attempt began with; at the end the update follows at once."""
    held, _ = loaded(3, 10, steps)
    assert StepLoop(held, 1.0, 0.0).next(9.0) is then


def test_an_undisturbed_attempt_makes_its_own_steps_and_finishes() -> None:
    """Those of the snapshot that it goes on from are not made again."""
    held, loop = loaded(before=1)
    steps = []
    while (step := loop.next(0.0)) is not NextStep.FINISH:
        steps.append(step)
        held.stepped(held.steps_done + 1, 0.0)
    assert steps == [NextStep.TRAIN] * 3


def test_a_request_after_the_last_step_comes_too_late() -> None:
    """The update is all there is left to publish, and worth more than a state."""
    for ask in (HeldAttempt.stop, HeldAttempt.save_and_stop, HeldAttempt.save_or_stop):
        held, loop = loaded(done=4)
        ask(held)
        assert loop.next(99.0) is NextStep.FINISH


def test_a_state_that_cannot_be_published_is_asked_for_once() -> None:
    """The attempt trains on; where its worker leaves, it stops."""
    held, loop = loaded(done=1)
    held.save_and_stop()
    assert [loop.next(0.0), loop.next(0.0)] == [NextStep.HAND_OVER, NextStep.TRAIN]
    held.save_or_stop()
    assert [loop.next(0.0), loop.next(0.0)] == [NextStep.HAND_OVER, NextStep.STOP]


def test_a_leaving_worker_saves_no_state_that_is_there_already() -> None:
    """Before its own first step, an attempt has only what it began with."""
    held, loop = loaded(before=2)
    held.save_or_stop()
    assert loop.next(0.0) is NextStep.STOP


def test_a_cancelled_attempt_is_not_saved() -> None:
    """Whatever is asked for before or after: another attempt instead."""
    for before, after in (
        (HeldAttempt.save_and_stop, HeldAttempt.stop),
        (HeldAttempt.save_or_stop, HeldAttempt.stop),
        (HeldAttempt.stop, HeldAttempt.save_and_stop),
        (HeldAttempt.stop, HeldAttempt.save_or_stop),
    ):
        held, loop = loaded(done=1)
        before(held)
        after(held)
        assert loop.next(99.0) is NextStep.STOP


def test_a_signal_between_two_lines_loses_no_state() -> None:
    """The handler of a signal interrupts the loop anywhere, and asks to save or stop."""

    class Interrupted(HeldAttempt):
        asked_at = ""

        def __getattribute__(self, name: str) -> object:
            value = super().__getattribute__(name)
            if name == type(self).asked_at:
                type(self).asked_at = ""
                self.save_or_stop()
            return value

    for asked_at in ("cancelled", "to_save", "steps_total", "snapshot_is_known"):
        held = Interrupted(plain_attempt())
        held.loaded(0, 4, 0.0)
        held.stepped(1, 0.0)
        loop, Interrupted.asked_at = StepLoop(held, 10.0, 0.0), asked_at
        answers = [loop.next(99.0), loop.next(99.0)]
        assert NextStep.HAND_OVER in answers, asked_at
        assert answers[0] is not NextStep.STOP, asked_at


def test_steps_follow_one_another_until_something_else_comes_next() -> None:
    """A request or a due snapshot comes between them, as `next` will then say."""
    for ask, at_seconds in (
        (HeldAttempt.stop, 0.0),
        (HeldAttempt.save_and_stop, 0.0),
        (HeldAttempt.save_or_stop, 0.0),
        (HeldAttempt.progress, 10.0),
    ):
        held, loop = loaded(done=1)
        assert loop.only_trains(9.9)
        ask(held)
        assert not loop.only_trains(at_seconds)
        assert loop.next(at_seconds) is not NextStep.TRAIN


@given(st.floats(0.1, 50.0), st.floats(0.0, 9.0))
def test_a_snapshot_that_was_tried_is_not_due_at_once(late: float, took: float) -> None:
    """Published or not, the next is due an interval after its end; none before it is known."""
    held, loop = loaded(done=1)
    now = loop.snapshot_due_at_seconds + late
    assert loop.next(now) is NextStep.SAVE
    held.snapshot = SNAPSHOT
    loop.saved(now + took)
    due = loop.snapshot_due_at_seconds
    assert due >= now + took + 10.0
    assert loop.next(due) is NextStep.TRAIN, "the manager has not heard of the last"
    held.known_snapshot = SNAPSHOT
    assert loop.next(due) is NextStep.SAVE
