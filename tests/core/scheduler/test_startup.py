"""Before a worker's first training: it imports and loads, and its speed is measured then."""

from collections.abc import Iterable
from dataclasses import replace

import pytest

from downpour.core.scheduler import events as on
from downpour.core.scheduler import outputs as out
from downpour.core.scheduler.workers import Speedometer
from downpour.core.stragglers.base import RunningTask
from tests.core.scheduler import make
from tests.core.scheduler.stage import Stage, of


@pytest.fixture
def stage() -> Stage:
    """Ann, bob and cid have been assigned shards 0, 1 and 2; dot is idle."""
    return Stage()


def loading(stage: Stage, worker: str, shard: int) -> None:
    """Let a worker say that it has its attempt, and still imports."""
    attempt = make.attempt("one", 0, shard, 0)
    progress = replace(make.progress(attempt), steps_done=0, steps_total=0)
    stage.beat(worker, progress)


def seen(stage: Stage, worker: str) -> RunningTask:
    """Return a worker's attempt as the policy sees it now."""
    stage.happen(on.Tick)
    [task] = [task for task in stage.views[-1].running if task.worker == worker]
    return task


def test_a_start_up_is_not_taken_for_training(stage: Stage) -> None:
    """A worker's first attempt begins, for a policy, when the worker has imported and loaded."""
    for _ in range(5):
        loading(stage, "ann", 0)
    ann = seen(stage, "ann")
    assert (ann.is_starting, ann.elapsed_seconds, ann.still_seconds) == (True, 0.0, 0.0)
    loaded_at = stage.now - 1.0
    stage.report("ann", make.attempt("one", 0, 0, 0), percent=10)
    ann = seen(stage, "ann")
    assert (ann.is_starting, ann.done) == (False, 0.1)
    assert ann.elapsed_seconds == stage.now - loaded_at


def test_a_start_up_that_takes_too_long_is_a_stall(stage: Stage) -> None:
    """After ten seconds, or twice the longest that was seen, a policy may look for another one."""
    while stage.now < 18.0:
        loading(stage, "ann", 0)
        loading(stage, "bob", 1)
    assert not seen(stage, "ann").is_starting
    assert seen(stage, "ann").still_seconds > 0.0
    update = replace(make.update("u"), load_seconds=99.0)
    [accepted] = of(stage.publish("bob", 1, update=update), out.Accepted)
    assert seen(stage, "ann").is_starting, "bob took longer itself"
    assert accepted.startup_seconds == accepted.completion_seconds - update.train_seconds
    limit = stage.core.state.experiments["one"].startup_limit_seconds
    assert limit == 2 * accepted.startup_seconds


def test_a_workers_startup_is_no_pace(stage: Stage) -> None:
    """Of its first update what it loaded does not count, of the second it does."""
    while stage.now < 12.0:
        loading(stage, "ann", 0)
    update = replace(make.update("u"), load_seconds=stage.now - 6.5)
    [accepted] = of(stage.publish("ann", 0, update=update), out.Accepted)
    assert accepted.startup_seconds > 0.0
    stage.happen(on.Tick)
    working_seconds = accepted.completion_seconds - accepted.startup_seconds
    assert stage.views[-1].published.seconds == [working_seconds]
    assert stage.views[-1].overhead_seconds == working_seconds - update.train_seconds
    for worker, shard in (("bob", 1), ("cid", 2)):
        stage.publish(worker, shard)
    stage.aggregate()
    [again] = [task for task in stage.views[-1].running if task.worker == "ann"]
    assert not again.is_starting
    happened = stage.publish("ann", again.shard, number=1, update=update)
    [accepted] = of(happened, out.Accepted)
    assert accepted.startup_seconds == 0.0


STEPS = 10

SAMPLES = 100


def measured(ends: Iterable[float], heard: Iterable[float] | None = None) -> Speedometer:
    """Return the speedometer of a worker whose steps ended then, each in a report of its own."""
    speedometer = Speedometer()
    speedometer.begin(SAMPLES)
    ends = list(ends)
    progress = make.progress(make.attempt("one", 0, 0, 0))
    for step, (ended, at_seconds) in enumerate(zip(ends, heard or ends, strict=True)):
        report = replace(progress, steps_done=step, steps_total=STEPS, elapsed_seconds=ended)
        speedometer.report(report, at_seconds)
        speedometer.report(report, at_seconds)  # a report without a step tells nothing new
    return speedometer


def fast(speedometer: Speedometer, now_seconds: float, *, busy: bool = True) -> float:
    """Return a speed in samples a second."""
    speed = speedometer.speed(now_seconds, busy=busy)
    assert speed is not None
    return speed.samples_per_second


def age(speedometer: Speedometer, now_seconds: float, *, busy: bool = True) -> float:
    """Return how long ago a speed was measured, in seconds."""
    speed = speedometer.speed(now_seconds, busy=busy)
    assert speed is not None
    return speed.age_seconds


def test_nothing_is_known_before_two_reports() -> None:
    """One tells when a step ended, and not how long it took."""
    assert measured([0.0]).speed(1.0, busy=True) is None
    assert measured([0.0, 1.0]).speed(1.0, busy=True) is not None


def test_a_speed_is_that_of_steps_and_not_of_messages() -> None:
    """Reports come late and unevenly; a worker's own clock says how long its steps took."""
    speedometer = measured([0.5, 1.5, 2.5, 3.5], heard=[1.0, 1.6, 4.0, 4.1])
    assert fast(speedometer, 4.1) == pytest.approx(10.0)


def test_a_speed_falls_while_the_next_step_is_overdue() -> None:
    """Else a worker that slowed down would look as fast as before until its next step ends."""
    speedometer = measured([0.0, 1.0, 2.0, 3.0, 4.0])
    assert fast(speedometer, 5.0) == pytest.approx(10.0)
    assert fast(speedometer, 9.0) == pytest.approx(5.0)
    assert fast(measured([0.0, 1.0]), 3.0) == pytest.approx(5.0)


def test_an_idle_worker_is_as_fast_as_it_was() -> None:
    """No step of it is overdue, however long it has had nothing to do."""
    speedometer = measured([0.0, 1.0, 2.0])
    assert fast(speedometer, 100.0, busy=False) == pytest.approx(10.0)
    speedometer.begin(SAMPLES)
    assert fast(speedometer, 100.0) == pytest.approx(10.0), "nor before its next two reports"


def test_a_speed_grows_old_once_its_attempt_is_over() -> None:
    """A policy may forget it: a worker that was slow an hour ago need not be so now."""
    speedometer = measured([0.0, 1.0, 2.0])
    assert age(speedometer, 5.0) == 0.0
    assert age(speedometer, 5.0, busy=False) == 3.0
    speedometer.begin(SAMPLES)
    assert age(speedometer, 60.0) == 58.0
    speedometer.begin(SAMPLES)
    assert age(speedometer, 60.0) == 58.0, "an attempt without reports measures nothing"


@pytest.mark.parametrize(
    ("ends", "variance"),
    [
        ((0.0, 1.0), None),  # one interval tells nothing of others
        ((0.0, 1.0, 2.0, 3.0), 0.0),
        # Steps of 1, 3 and 2 s: 2 s on average, and 1 s of standard deviation, each a tenth.
        ((0.0, 1.0, 4.0, 6.0), 0.1 * (1.0 / 2.0) ** 2),
    ],
)
def test_a_speed_says_how_steady_it_is(ends: tuple[float, ...], variance: float | None) -> None:
    """Over n steps its relative error is that of one step over the root of n."""
    speed = measured(ends).speed(ends[-1], busy=True)
    assert speed is not None
    assert speed.share == pytest.approx((len(ends) - 1) / STEPS)
    assert speed.variance == (None if variance is None else pytest.approx(variance))


def test_a_speed_says_how_long_a_step_takes() -> None:
    """Until then a worker hands nothing over."""
    speed = measured([0.5, 1.5, 3.5]).speed(3.5, busy=True)
    assert speed is not None
    assert speed.step_seconds == pytest.approx(1.5)


def test_a_worker_without_a_step_is_no_faster_than_that_shows() -> None:
    """Its attempt was stopped three seconds after it had begun, because a copy was sooner."""
    speedometer = measured([0.0], heard=[5.0])
    progress = make.progress(make.attempt("one", 0, 0, 0))
    still = replace(progress, steps_done=0, steps_total=STEPS, elapsed_seconds=0.0)
    speedometer.report(still, 8.0)
    speed = speedometer.speed(9.0, busy=False)
    assert speed is not None
    assert speed.at_most
    assert speed.samples_per_second == pytest.approx(SAMPLES / STEPS / 3.0)
    assert speed.step_seconds == 3.0
    assert speed.age_seconds == 1.0
    speedometer.begin(SAMPLES)
    assert speedometer.speed(9.0, busy=True) == speed, "it is remembered in the next attempt"


@pytest.mark.parametrize(("still_seconds", "at_most"), [(0.5, False), (3.0, True)])
def test_a_bound_replaces_a_speed_only_below_it(still_seconds: float, *, at_most: bool) -> None:
    """A worker that takes a second a step has not become faster because it was stopped sooner."""
    speedometer = measured([0.0, 1.0, 2.0])
    speedometer.begin(SAMPLES)
    progress = make.progress(make.attempt("one", 1, 0, 0))
    still = replace(progress, steps_done=0, steps_total=STEPS, elapsed_seconds=0.0)
    for at_seconds in (10.0, 10.0 + still_seconds):
        speedometer.report(still, at_seconds)
    speed = speedometer.speed(20.0, busy=False)
    assert speed is not None
    assert speed.at_most is at_most
