"""The invariants notice a state that contradicts itself; each test violates one, by name."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from downpour.base.states import Failure, FailureKind
from downpour.core.scheduler import Scheduler
from downpour.core.scheduler import events as on
from downpour.core.scheduler.experiment import Experiment
from downpour.core.scheduler.invariants import check_invariants
from downpour.core.scheduler.round import Round, TaskKey
from tests.core.scheduler.conftest import Make


@pytest.fixture
def scheduler(make: Make) -> Scheduler:
    """Return a scheduler in the middle of a round: ann and bob train, shard 2 is pending."""
    scheduler = Scheduler()
    for worker in ("ann", "bob"):
        scheduler.handle(on.WorkerJoined(at_seconds=0.0, worker=worker))
    for name in ("one", "two"):
        scheduler.handle(on.ExperimentSubmitted(at_seconds=1.0, experiment=name, spec=make.spec()))
    scheduler.handle(make.prepared("one", (10, 10, 10), at_seconds=2.0))
    check_invariants(scheduler.state)
    return scheduler


def one(scheduler: Scheduler) -> tuple[Experiment, Round]:
    """Return the active experiment and its round."""
    assert scheduler.state.active is not None
    assert scheduler.state.active.round is not None
    return scheduler.state.active, scheduler.state.active.round


def two_on_one_task(scheduler: Scheduler) -> None:
    """Make bob busy with ann's task."""
    ann, bob = scheduler.state.workers
    bob.running = ann.running


def nobody_active(scheduler: Scheduler) -> None:
    """Forget which experiment is active."""
    scheduler.state.active = None


def wrong_count(scheduler: Scheduler) -> None:
    """Count an update that is not there."""
    one(scheduler)[1].published += 1


def lost_shard(scheduler: Scheduler) -> None:
    """Leave a pending shard out of the offer."""
    one(scheduler)[1]._pending.clear()


def idle_and_busy(scheduler: Scheduler) -> None:
    """List a busy worker among the idle."""
    scheduler.state.workers._idle["ann"] = None


def early_aggregation(scheduler: Scheduler) -> None:
    """Aggregate a round that is not complete."""
    one(scheduler)[0].applying = (TaskKey(0, 0), TaskKey(0, 2))


def forgotten_worker(scheduler: Scheduler) -> None:
    """Let a worker vanish from under its task."""
    scheduler.state.workers.remove("bob")


def too_many_failures(scheduler: Scheduler) -> None:
    """Let a task fail more often than the spec allows."""
    one(scheduler)[1].tasks[2].failed = [Failure(FailureKind.LOST, "gone")] * 99


def standstill(scheduler: Scheduler) -> None:
    """Let an experiment run without a round."""
    experiment, _ = one(scheduler)
    for worker in list(scheduler.state.workers):
        scheduler.state.workers.remove(worker.name)
    experiment.rounds = []


def no_model(scheduler: Scheduler) -> None:
    """Let an experiment run without a model."""
    one(scheduler)[0].models.clear()


def held_up(scheduler: Scheduler) -> None:
    """Let an experiment wait for an evaluation when it need not."""
    experiment, _ = one(scheduler)
    standstill(scheduler)
    experiment.evaluating[0] = experiment.model


def early_result(scheduler: Scheduler) -> None:
    """Publish the result of an experiment that is still being trained."""
    one(scheduler)[0].publishing = True


def result_without_an_end(scheduler: Scheduler) -> None:
    """Let an experiment have its result and go on."""
    experiment, _ = one(scheduler)
    experiment.result = experiment.model


@pytest.mark.parametrize(
    ("falsify", "sentence"),
    [
        (two_on_one_task, "bob is busy with a task that is held by"),
        (nobody_active, "should be the only open one, but open are one"),
        (wrong_count, "counts 1 published"),
        (lost_shard, r"offers the shards \[\]"),
        (idle_and_busy, "does not agree with the workers' states"),
        (early_aggregation, "applies .*, which it does not have"),
        (forgotten_worker, "should run on bob, which does not run it"),
        (too_many_failures, "has failed 99 times, and the experiment goes on"),
        (standstill, "stands still and waits for nothing"),
        (held_up, "may go on and does not"),
        (early_result, "publishes a model, but something of it goes on"),
        (result_without_an_end, "is running, and its result is"),
        (no_model, "runs without a model"),
    ],
)
def test_a_broken_invariant_is_named(
    scheduler: Scheduler, falsify: Callable[[Scheduler], None], sentence: str
) -> None:
    """A violated invariant raises, and the sentence says which."""
    falsify(scheduler)
    with pytest.raises(AssertionError, match=sentence):
        check_invariants(scheduler.state)
