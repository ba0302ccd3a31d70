"""The state of the living workers."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from downpour.errors import IllegalTransition
from downpour.scheduler.workers import Worker, Workers

if TYPE_CHECKING:
    from tests.scheduler.conftest import Make


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


def test_a_worker_is_released_only_from_what_it_is_doing(make: Make) -> None:
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


def test_a_busy_worker_cannot_be_given_more(make: Make) -> None:
    """A worker has one task at a time."""
    workers = Workers()
    workers.join("ann", 0.0)
    workers.assign("ann", make.attempt("one", 0, 0, 0), 1.0)
    with pytest.raises(IllegalTransition, match="worker ann: no step 'assign' from 'busy'"):
        workers.assign("ann", make.attempt("one", 0, 1, 0), 1.0)


def test_a_speed_is_that_of_steps_and_not_of_messages(make: Make) -> None:
    """Reports come late and unevenly; a worker's own clock says how long its steps took."""
    workers = Workers()
    workers.join("ann", 0.0)
    attempt = make.attempt("one", 0, 0, 0)
    workers.assign("ann", attempt, 0.0, samples=100)
    ann = workers.get("ann")
    assert ann is not None
    reports = [(0, 0.5, 1.0), (1, 1.5, 1.6), (2, 2.5, 4.0), (3, 3.5, 4.1)]
    for steps, stepped, heard in reports:
        progress = replace(
            make.progress(attempt), steps_done=steps, steps_total=10, elapsed_seconds=stepped
        )
        ann.mention(progress, heard)
        ann.mention(progress, heard)  # a report without a step tells nothing new
    assert fast(ann, 4.1) == pytest.approx(10.0)


@pytest.mark.parametrize(
    ("ends", "variance"),
    [
        ((0.0, 1.0), None),  # one time tells nothing of others
        ((0.0, 1.0, 2.0, 3.0), 0.0),
        # Steps of 1, 3 and 2 s: 2 s on average, and 1 s of standard deviation, each a tenth.
        ((0.0, 1.0, 4.0, 6.0), 0.1 * (1.0 / 2.0) ** 2),
    ],
)
def test_a_speed_says_how_steady_it_is(
    make: Make, ends: tuple[float, ...], variance: float | None
) -> None:
    """Over n steps its relative error is that of one step over the root of n."""
    workers = Workers()
    workers.join("ann", 0.0)
    attempt = make.attempt("one", 0, 0, 0)
    workers.assign("ann", attempt, 0.0, samples=100)
    ann = workers.get("ann")
    assert ann is not None
    for step, stepped in enumerate(ends):
        progress = replace(
            make.progress(attempt), steps_done=step, steps_total=10, elapsed_seconds=stepped
        )
        ann.mention(progress, stepped)
    speed = ann.speed(ends[-1])
    assert speed is not None
    assert speed.share == pytest.approx((len(ends) - 1) / 10)
    assert speed.variance == (None if variance is None else pytest.approx(variance))


def test_a_speed_falls_while_the_next_step_is_overdue(make: Make) -> None:
    """Else a worker that slowed down would look as fast as before until its next step ends."""
    workers = Workers()
    workers.join("ann", 0.0)
    attempt = make.attempt("one", 0, 0, 0)
    workers.assign("ann", attempt, 0.0, samples=100)
    ann = workers.get("ann")
    assert ann is not None
    assert ann.speed(0.0) is None
    for step in range(5):
        progress = replace(
            make.progress(attempt), steps_done=step, steps_total=10, elapsed_seconds=float(step)
        )
        ann.mention(progress, float(step))
    assert fast(ann, 5.0) == pytest.approx(10.0)
    assert fast(ann, 9.0) == pytest.approx(5.0)


def test_an_idle_worker_is_as_fast_as_it_was(make: Make) -> None:
    """Nothing of it is overdue, however long it has had nothing to do."""
    workers = Workers()
    workers.join("ann", 0.0)
    first, second = make.attempt("one", 0, 0, 0), make.attempt("one", 1, 0, 0)
    workers.assign("ann", first, 0.0, samples=100)
    ann = workers.get("ann")
    assert ann is not None
    for step in range(5):
        progress = replace(
            make.progress(first), steps_done=step, steps_total=10, elapsed_seconds=float(step)
        )
        ann.mention(progress, float(step))
    workers.release("ann", first)
    assert fast(ann, 100.0) == pytest.approx(10.0)
    workers.assign("ann", second, 100.0, samples=100)
    assert fast(ann, 100.0) == pytest.approx(10.0)


def test_who_is_gone_is_not_found(make: Make) -> None:
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
    assert not workers.any_idle


def test_a_sign_of_life_is_noted() -> None:
    """Hearing of a worker renews its time; hearing of a stranger does nothing."""
    workers = Workers()
    workers.join("ann", 0.0)
    ann = workers.heard("ann", 7.0)
    assert ann is not None
    assert ann.seen_at_seconds == 7.0
    assert workers.heard("bob", 7.0) is None
    assert len(workers) == 1


def test_the_speed_of_an_idle_worker_grows_old(make: Make) -> None:
    """A policy may forget it: what was slow an hour ago need not be so now."""
    workers = Workers()
    workers.join("ann", 0.0)
    attempt = make.attempt("one", 0, 0, 0)
    workers.assign("ann", attempt, 0.0, samples=100)
    ann = workers.get("ann")
    assert ann is not None
    for step in range(3):
        progress = replace(
            make.progress(attempt), steps_done=step, steps_total=10, elapsed_seconds=float(step)
        )
        ann.mention(progress, float(step))
    ages = [speed.age_seconds for now in (2.0, 5.0) if (speed := ann.speed(now)) is not None]
    workers.release("ann", attempt)
    ages += [speed.age_seconds for now in (5.0, 60.0) if (speed := ann.speed(now)) is not None]
    assert ages == [0.0, 0.0, 3.0, 58.0]


def fast(worker: Worker, now_seconds: float) -> float:
    """Return a worker's speed in samples a second."""
    speed = worker.speed(now_seconds)
    assert speed is not None
    return speed.samples_per_second
