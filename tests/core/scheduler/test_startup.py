"""A worker imports and loads before its first task of an experiment: that is not training."""

from __future__ import annotations

from dataclasses import replace

import pytest

from downpour.core.scheduler import events as on
from downpour.core.scheduler import facts
from downpour.core.stragglers.base import RunningTask
from tests.core.scheduler.conftest import Make
from tests.core.scheduler.stage import Stage, of


@pytest.fixture
def stage(make: Make) -> Stage:
    """Ann, bob and cid have been assigned shards 0, 1 and 2; dot is idle."""
    return Stage(make)


def loading(stage: Stage, worker: str, shard: int) -> None:
    """Let a worker say that it has its attempt, and still imports."""
    attempt = stage.make.attempt("one", 0, shard, 0)
    progress = replace(stage.make.progress(attempt), steps_done=0, steps_total=0)
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
    stage.report("ann", stage.make.attempt("one", 0, 0, 0), percent=10)
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
    update = replace(stage.make.update("u"), load_seconds=99.0)
    attempt = stage.make.attempt("one", 0, 1, 0)
    [accepted] = of(
        stage.happen(on.UpdatePublished, worker="bob", attempt=attempt, update=update),
        facts.Accepted,
    )
    assert seen(stage, "ann").is_starting, "bob took longer itself"
    assert accepted.startup_seconds == accepted.completion_seconds - update.train_seconds
    limit = stage.core.state.experiments["one"].startup_limit_seconds
    assert limit == 2 * accepted.startup_seconds


def test_a_workers_startup_is_no_pace(stage: Stage) -> None:
    """Of its first update what it loaded does not count, of the second it does."""
    while stage.now < 12.0:
        loading(stage, "ann", 0)
    attempt = stage.make.attempt("one", 0, 0, 0)
    update = replace(stage.make.update("u"), load_seconds=stage.now - 6.5)
    [accepted] = of(
        stage.happen(on.UpdatePublished, worker="ann", attempt=attempt, update=update),
        facts.Accepted,
    )
    assert accepted.startup_seconds > 0.0
    stage.happen(on.Tick)
    working_seconds = accepted.completion_seconds - accepted.startup_seconds
    assert stage.views[-1].published.seconds == [working_seconds]
    assert stage.views[-1].overhead_seconds == working_seconds - update.train_seconds
    for worker, shard in (("bob", 1), ("cid", 2)):
        stage.publish(worker, shard)
    stage.happen(on.Aggregated, experiment="one", round=0, model=stage.make.file("m1"))
    [again] = [task for task in stage.views[-1].running if task.worker == "ann"]
    assert not again.is_starting
    attempt = stage.make.attempt("one", 1, again.shard, 0)
    [accepted] = of(
        stage.happen(on.UpdatePublished, worker="ann", attempt=attempt, update=update),
        facts.Accepted,
    )
    assert accepted.startup_seconds == 0.0
