"""What comes next between two steps of a task, without a clock, a thread or a file."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from downpour.base.values import AttemptId, PublishedFile, Snapshot
from downpour.core.node.attempt import HeldAttempt, NextStep, StepLoop

SNAPSHOT = Snapshot(
    file=PublishedFile(name="snapshot", size_bytes=1, checksum="0" * 32),
    steps_done=1,
    steps_total=2,
)


def loaded(steps_done: int = 0, steps_total: int = 4) -> tuple[HeldAttempt, StepLoop]:
    """Make an attempt that has been loaded, and whose snapshots are due every ten seconds."""
    held = HeldAttempt(AttemptId(experiment="any", round=0, shard=0, attempt=0))
    held.loaded(steps_done, steps_total, 0.0)
    return held, StepLoop(held, 10.0, 0.0)


def test_an_undisturbed_attempt_makes_its_own_steps_and_finishes() -> None:
    """Those of the snapshot that it goes on from are not made again."""
    held, loop = loaded(steps_done=1)
    steps = []
    while (step := loop.next(0.0)) is not NextStep.FINISH:
        steps.append(step)
        held.stepped(held.steps_done + 1, 0.0)
    assert steps == [NextStep.TRAIN] * 3


def test_a_request_after_the_last_step_comes_too_late() -> None:
    """The update is all there is left to publish, and worth more than a state."""
    for ask in (HeldAttempt.stop, HeldAttempt.save_and_stop, HeldAttempt.save_or_stop):
        held, loop = loaded()
        held.stepped(4, 0.0)
        ask(held)
        assert loop.next(99.0) is NextStep.FINISH


def test_a_state_that_cannot_be_published_is_asked_for_once() -> None:
    """The attempt trains on; where its worker leaves, it stops."""
    held, loop = loaded()
    held.stepped(1, 0.0)
    held.save_and_stop()
    assert [loop.next(0.0), loop.next(0.0)] == [NextStep.HAND_OVER, NextStep.TRAIN]
    held.save_or_stop()
    assert [loop.next(0.0), loop.next(0.0)] == [NextStep.HAND_OVER, NextStep.STOP]


def test_a_leaving_worker_saves_no_state_that_is_there_already() -> None:
    """Before its own first step, an attempt has only what it began with."""
    held, loop = loaded(steps_done=2)
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
        held, loop = loaded()
        held.stepped(1, 0.0)
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
        held = Interrupted(AttemptId(experiment="any", round=0, shard=0, attempt=0))
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
        held, loop = loaded()
        held.stepped(1, 0.0)
        assert loop.only_trains(9.9)
        ask(held)
        assert not loop.only_trains(at_seconds)
        assert loop.next(at_seconds) is not NextStep.TRAIN


@given(st.floats(0.1, 50.0), st.floats(0.0, 9.0))
def test_a_snapshot_that_was_tried_is_not_due_at_once(late: float, took: float) -> None:
    """Published or not, the next is due an interval after its end; none before it is known."""
    held, loop = loaded()
    held.stepped(1, 0.0)
    now = loop.snapshot_due_at_seconds + late
    assert loop.next(now) is NextStep.SAVE
    held.snapshot = SNAPSHOT
    loop.saved(now + took)
    due = loop.snapshot_due_at_seconds
    assert due >= now + took + 10.0
    assert loop.next(due) is NextStep.TRAIN, "the manager has not heard of the last"
    held.known_snapshot = SNAPSHOT
    assert loop.next(due) is NextStep.SAVE
