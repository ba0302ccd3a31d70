"""The invariants notice a state that contradicts itself; each test violates one, by name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

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
    spec = make.spec(keep_best="loss")
    for name in ("one", "two"):
        scheduler.handle(on.ExperimentSubmitted(at_seconds=1.0, experiment=name, spec=spec))
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


def unknown_attempt(scheduler: Scheduler) -> None:
    """Make ann busy with an attempt of no round."""
    ann, _ = scheduler.state.workers
    assert ann.running is not None
    ann.running = replace(ann.running, round=7)


def nobody_trains(scheduler: Scheduler) -> None:
    """Take back all shards, and assign none again."""
    for attempt, name in one(scheduler)[1].holders():
        scheduler.state.workers.release(name, attempt)
        one(scheduler)[1].give_up(attempt.shard, name, None)


def nobodys_turn(scheduler: Scheduler) -> None:
    """End an experiment, and let the next one wait."""
    one(scheduler)[0].life.step("cancel")
    scheduler.state.active = None


def nobody_active(scheduler: Scheduler) -> None:
    """Forget which experiment is active."""
    scheduler.state.active = None


def wrong_count(scheduler: Scheduler) -> None:
    """Count an update that is not there."""
    one(scheduler)[1].published += 1


def lost_shard(scheduler: Scheduler) -> None:
    """Leave a pending shard out of the offer."""
    one(scheduler)[1]._pending.clear()


def forgotten_holder(scheduler: Scheduler) -> None:
    """Let a round forget that a worker holds a shard."""
    one(scheduler)[1]._held.remove(1)


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


def more_rounds(scheduler: Scheduler) -> None:
    """Do more rounds than the spec asks for."""
    scheduler.state.experiments["two"].rounds_done = 3


def lost_best(scheduler: Scheduler) -> None:
    """Remove the best model."""
    experiment, _ = one(scheduler)
    experiment.best = on.Best(round=0, value=1.0, model=replace(experiment.model, name="gone"))


def no_model(scheduler: Scheduler) -> None:
    """Let an experiment run without a model."""
    one(scheduler)[0].models.clear()


def unused_updates(scheduler: Scheduler) -> None:
    """Make no version of a whole round."""
    experiment, current = one(scheduler)
    nobody_trains(scheduler)
    for shard in range(3):
        attempt = current.assign(shard, "ann", 0.0)
        current.publish(attempt, "ann", Make().update("u"), 1.0)
        experiment.arrive(attempt, 1.0)


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
        (forgotten_holder, r"holds \[0\]"),
        (idle_and_busy, "does not agree with the workers' states"),
        (early_aggregation, "applies .*, which it does not have"),
        (forgotten_worker, "should run on bob, which does not run it"),
        (too_many_failures, "has failed 99 times, and the experiment goes on"),
        (standstill, "stands still and waits for nothing"),
        (held_up, "may go on and does not"),
        (early_result, "publishes a model, but something of it goes on"),
        (result_without_an_end, "is running, and its result is"),
        (no_model, "runs without a model"),
        (unknown_attempt, "is busy with .*, which no round waits for"),
        (nobody_trains, "no worker trains that could, although round 0 has pending shards"),
        (nobodys_turn, "an experiment waits although none is active"),
        (more_rounds, "has done 3 of 2 rounds"),
        (lost_best, "has let its best model go"),
        (unused_updates, "is complete, but not treated so"),
        (lambda s: s.state.experiments["two"].life.step("cancel"), "does not say why"),
        (lambda s: s.state.experiments["two"].rounds.append(one(s)[1]), "something of it goes on"),
        (lambda s: one(s)[0].start_round(), "has 2 open rounds, more than 1"),
        (lambda s: one(s)[0].models.extend(one(s)[0].models * 4), "holds 5 models, more than 4"),
        (
            lambda s: one(s)[0].evaluating.update(dict.fromkeys((0, 1), one(s)[0].model)),
            r"runs ahead of its evaluations \[0, 1\]",
        ),
        (
            lambda s: one(s)[0].evaluating.update({0: Make().file("gone")}),
            "evaluates a model that it no longer holds",
        ),
        (lambda s: one(s)[1].held_back.add(0), r"holds the shards \{0\} back, and not set()"),
        (lambda s: one(s)[1]._waiting.update({0: 9.0}), r"lets the shards \[0\] wait"),
        (
            lambda s: one(s)[1].tasks[2].held_by.update(one(s)[1].tasks[0].held_by),
            r"is pending, held by \['ann'\]",
        ),
        (
            lambda s: one(s)[1].tasks[2].failed.append(Failure(FailureKind.LOST, "gone")),
            r"has failed 1 times, but on \(\)",
        ),
    ],
)
def test_a_broken_invariant_is_named(
    scheduler: Scheduler, falsify: Callable[[Scheduler], object], sentence: str
) -> None:
    """A violated invariant raises, and the sentence says which."""
    falsify(scheduler)
    with pytest.raises(AssertionError, match=sentence):
        check_invariants(scheduler.state)
