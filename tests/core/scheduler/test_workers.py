"""The state of the living workers."""

from __future__ import annotations

from dataclasses import replace

import pytest

from downpour.base.errors import IllegalTransition
from downpour.core.scheduler.workers import Workers
from tests.core.scheduler.conftest import Make


def test_the_worker_idle_longest_is_first(make: Make) -> None:
    """A worker that becomes idle stands behind those that were idle before."""
    workers = Workers()
    for name in ("ann", "bob", "cid"):
        workers.join(name, 0.0)
    attempt = make.attempt("one", 0, 0, 0)
    workers.assign("ann", attempt, 1.0)
    assert list(workers.idle) == ["bob", "cid"]
    assert workers.release("ann", attempt)
    assert list(workers.idle) == ["bob", "cid", "ann"]


def test_a_worker_is_released_only_from_its_running_attempt(make: Make) -> None:
    """Another attempt, an idle worker and a stranger are left as they are."""
    workers = Workers()
    workers.join("ann", 0.0)
    attempt, other = make.attempt("one", 0, 0, 0), make.attempt("one", 0, 0, 1)
    assert not workers.release("ann", attempt)
    workers.assign("ann", attempt, 1.0)
    assert not workers.release("ann", other)
    assert not workers.release("bob", attempt)
    ann = workers.get("ann")
    assert ann is not None
    assert ann.running == attempt


def test_heartbeats_that_come_late_are_waited_for_longer() -> None:
    """Four times the longest gap that was seen; a gap beyond the limit is the manager's own."""
    workers = Workers()
    workers.join("ann", 0.0)
    ann = workers.get("ann")
    assert ann is not None
    assert ann.silence_limit_seconds == 10.0
    for seconds in (2.0, 4.0, 6.0, 106.0):
        ann.beat(seconds)
    assert ann.silence_limit_seconds == 8.0


def test_a_busy_worker_cannot_be_given_more(make: Make) -> None:
    """A worker has one task at a time."""
    workers = Workers()
    workers.join("ann", 0.0)
    workers.assign("ann", make.attempt("one", 0, 0, 0), 1.0)
    with pytest.raises(IllegalTransition, match="worker ann: no step 'assign' from 'busy'"):
        workers.assign("ann", make.attempt("one", 0, 1, 0), 1.0)


def test_a_worker_that_left_is_not_found(make: Make) -> None:
    """Removing returns the worker as it was; a second time it returns None."""
    workers = Workers()
    workers.join("ann", 0.0)
    attempt = make.attempt("one", 0, 0, 0)
    workers.assign("ann", attempt, 1.0)
    gone = workers.remove("ann")
    assert gone is not None
    assert (gone.running, gone.life.state) == (attempt, "gone")
    assert workers.remove("ann") is None
    assert (workers.get("ann"), len(workers), list(workers.names)) == (None, 0, [])
    assert not workers.idle


def test_a_sign_of_life_is_noted() -> None:
    """Hearing of a worker renews its time; hearing of a stranger does nothing."""
    workers = Workers()
    workers.join("ann", 0.0)
    ann = workers.heard("ann", 7.0)
    assert ann is not None
    assert ann.seen_at_seconds == 7.0
    assert workers.heard("bob", 7.0) is None
    assert len(workers) == 1


def test_a_new_attempt_has_taken_no_time_to_start(make: Make) -> None:
    """What an earlier one took is its own."""
    workers = Workers()
    workers.join("ann", 0.0)
    ann = workers.get("ann")
    assert ann is not None
    ann.startup_seconds = 7.0
    workers.assign("ann", make.attempt("one", 0, 0, 0), 1.0)
    assert ann.startup_seconds == 0.0


def test_a_stuck_worker_is_not_able(make: Make) -> None:
    """It is again when it reports that it works at nothing; an unfit one when it may.

    One that joins with an attempt of another manager is stuck. If it leaves, its name is free.
    """
    workers = Workers()
    for name in ("ann", "bob", "cid"):
        workers.join(name, 0.0)
    workers.stick("cid")
    workers.assign("ann", make.attempt("one", 0, 0, 0), 1.0)
    workers.stick("ann")
    workers.exclude("bob", "it lacks a label")
    assert not workers.able
    assert not workers.idle
    workers.unstick("ann")
    workers.unstick("bob")
    assert list(workers.able) == ["ann"]
    workers.readmit()
    assert list(workers.able) == ["ann", "bob"]
    workers.remove("cid")
    workers.join("cid", 2.0)
    assert list(workers.able) == ["ann", "bob", "cid"]


def test_an_awaited_worker_is_forgotten_with_its_attempt(make: Make) -> None:
    """We know nothing else of it."""
    workers, attempt = Workers(), make.attempt("one", 0, 0, 0)
    for name in ("ann", "bob"):
        workers.expect(name, attempt, 0.0)
    workers.stick("ann")
    assert workers.release("bob", attempt)
    assert len(workers) == 0


def test_a_hand_over_at_the_first_step_is_measured(make: Make) -> None:
    """Else it would count as one that is as fast as the others, and get the next late shard."""
    workers = Workers()
    workers.join("ann", 0.0)
    attempt = make.attempt("one", 0, 0, 0)
    workers.assign("ann", attempt, 1.0, samples=100)
    ann = workers.get("ann")
    assert ann is not None
    loaded = replace(make.progress(attempt), steps_done=0, steps_total=50, elapsed_seconds=2.0)
    ann.mention(loaded, 3.0)
    ann.handed_over(0.0, 4.0)
    assert ann.speed(4.0) is None
    ann.handed_over(0.02, 7.0)
    speed = ann.speed(7.0)
    assert speed is not None
    assert (speed.samples_per_second, speed.step_seconds) == pytest.approx((0.5, 4.0))
    assert not speed.at_most
