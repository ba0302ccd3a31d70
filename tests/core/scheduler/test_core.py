"""What the scenarios do not show: fields of the core that drivers read, and odd beginnings."""

from __future__ import annotations

from dataclasses import replace

import pytest

from downpour.core.scheduler import Output, Scheduler
from downpour.core.scheduler import events as on
from downpour.core.scheduler import outputs as out
from tests.core.scheduler.conftest import Make


def begin(make: Make, patience: float = 1.0, **fields: object) -> tuple[Scheduler, out.Assigned]:
    """Return a scheduler whose only worker, ann, has just been given the only shard."""
    scheduler = Scheduler(patience)
    scheduler.handle(on.WorkerJoined(at_seconds=0.0, worker="ann"))
    spec = make.spec(**{"shards": 1, "epochs": 1, "retries": 0, **fields})
    scheduler.handle(on.ExperimentSubmitted(at_seconds=1.0, experiment="one", spec=spec))
    output = scheduler.handle(make.prepared("one", (10,), at_seconds=2.0))
    [assigned] = output.facts
    assert isinstance(assigned, out.Assigned)
    assert output.commands == [out.Assign(assigned)]
    return scheduler, assigned


def publish(
    make: Make, scheduler: Scheduler, number: int, shard: int = 0, worker: str = "ann"
) -> None:
    """Let a worker publish a shard's update of a round."""
    attempt, update = make.attempt("one", number, shard, 0), make.update(f"u{number}")
    scheduler.handle(
        on.UpdatePublished(at_seconds=3.0, worker=worker, attempt=attempt, update=update)
    )


def aggregated(make: Make, number: int) -> on.Aggregated:
    """Return the event that the version after this one is made."""
    model = make.file(f"m{number + 1}")
    return on.Aggregated(at_seconds=4.0, experiment="one", round=number, model=model)


def test_a_version_is_taken_in_once(make: Make) -> None:
    """A repeated report is none of the next version, nor is a failure of the old one."""
    scheduler, _ = begin(make, epochs=3)
    publish(make, scheduler, 0)
    scheduler.handle(aggregated(make, 0))
    publish(make, scheduler, 1)
    refused = ((0, "altered"),)
    failed = on.AggregationFailed(at_seconds=5.0, experiment="one", round=0, reasons=refused)
    assert [scheduler.handle(event) for event in (aggregated(make, 0), failed)] == [Output()] * 2


def test_an_update_that_came_meanwhile_makes_the_next_version(make: Make) -> None:
    """If shards are rounds apart; it is asked for before any file is removed."""
    scheduler = Scheduler()
    for worker in ("ann", "bob"):
        scheduler.handle(on.WorkerJoined(at_seconds=0.0, worker=worker))
    spec = make.spec(shards=2, mode="fedasync")
    scheduler.handle(on.ExperimentSubmitted(at_seconds=1.0, experiment="one", spec=spec))
    scheduler.handle(make.prepared("one", (10, 10), at_seconds=2.0))
    for shard, worker in enumerate(("ann", "bob")):
        publish(make, scheduler, 0, shard, worker)
    commands = scheduler.handle(aggregated(make, 0)).commands
    following, removed = (one for one in commands if isinstance(one, out.Aggregate | out.Discard))
    assert isinstance(following, out.Aggregate)
    assert (following.round, following.shards) == (1, (1,))
    assert isinstance(removed, out.Discard)


def test_a_shard_of_easgd_continues_with_its_own_parameters(make: Make) -> None:
    """Which are in one file, and no version of the model."""
    scheduler, _ = begin(make, epochs=2, mode="easgd")
    publish(make, scheduler, 0)
    event = replace(aggregated(make, 0), own=(make.file("own"),))
    [again] = [one for one in scheduler.handle(event).commands if isinstance(one, out.Assign)]
    assert (again.assigned.model, again.leading) == (make.file("own"), ())


def test_shards_that_nobody_asked_for_end_the_experiment(make: Make) -> None:
    """Training on another number of shards than the spec says would be another experiment."""
    scheduler = Scheduler()
    spec = make.spec(shards=2)
    scheduler.handle(on.ExperimentSubmitted(at_seconds=0.0, experiment="one", spec=spec))
    output = scheduler.handle(make.prepared("one", (10,), at_seconds=1.0))
    assert [type(fact) for fact in output.facts] == [out.Concluded]
    assert [type(command) for command in output.commands] == [out.Conclude]
    assert scheduler.state.experiments["one"].reason.endswith("cut into 1 shards instead of 2")


def test_an_experiment_that_ends_names_the_versions_that_stay(make: Make) -> None:
    """Others were published by managers that had been replaced."""
    scheduler, assigned = begin(make)
    output = scheduler.handle(
        on.ExperimentCancelled(
            at_seconds=5.0, experiment=assigned.attempt.experiment, reason="enough"
        )
    )
    [conclude] = [one for one in output.commands if isinstance(one, out.Conclude)]
    assert conclude.versions == (assigned.model,)


@pytest.mark.parametrize(
    ("epochs", "said"), [(3, ["stopped after epoch 2: no better loss since epoch 1"]), (2, [])]
)
def test_a_training_that_stops_early_says_so(make: Make, epochs: int, said: list[str]) -> None:
    """One whose rounds are all done does not."""
    scheduler, _ = begin(make, epochs=epochs, stop_after=1)
    for number in (0, 1):
        publish(make, scheduler, number)
        scheduler.handle(aggregated(make, number))
        scheduler.handle(
            on.Evaluated(
                at_seconds=5.0, experiment="one", round=number, evaluation=make.evaluation()
            )
        )
    assert [decision.text for decision in scheduler.state.decisions] == said


def test_a_resumption_without_patience_left_publishes_at_once(make: Make) -> None:
    """Its shards have nothing to train."""
    before = {"init_from": "x", "rounds_before": 6, "best_checksum": "0", "stop_after": 2}
    scheduler = Scheduler()
    spec = make.spec(shards=1, **before)
    scheduler.handle(on.ExperimentSubmitted(at_seconds=0.0, experiment="one", spec=spec))
    handed_on = on.HandedOn(best=on.Best(round=-5, value=0.5, model=None))
    output = scheduler.handle(make.prepared("one", (10,), handed_on=handed_on))
    assert [type(command) for command in output.commands] == [out.Publish]


def test_a_heartbeat_tells_how_far_an_attempt_is(make: Make) -> None:
    """Also without a snapshot that it has withdrawn; it is shown until the attempt is over."""
    scheduler, assigned = begin(make)
    progress = make.progress(assigned.attempt)
    saved = make.progress(assigned.attempt, saved="s1")
    scheduler.handle(make.beat("ann", saved, at_seconds=3.0))
    scheduler.handle(make.beat("ann", progress, at_seconds=4.0))
    ann = scheduler.state.workers.get("ann")
    assert ann is not None
    assert (ann.progress, ann.system, ann.seen_at_seconds) == (progress, make.system(), 4.0)
    scheduler.handle(
        on.UpdatePublished(
            at_seconds=6.0, worker="ann", attempt=assigned.attempt, update=make.update("u")
        )
    )
    assert (ann.progress, ann.running, ann.tasks_done, ann.seen_at_seconds) == (None, None, 1, 6.0)
    assert ann.longest_pause_seconds == 3.0, "the one before its update"


@pytest.mark.parametrize("registers", [False, True])
def test_a_worker_that_registers_with_an_attempt_continues_it(
    make: Make, *, registers: bool
) -> None:
    """With one of another manager, it gets no work before it says that it has none."""
    scheduler, assigned = begin(make, retries=1)
    for attempt in (assigned.attempt, make.attempt("other", 0, 0, 0)):
        joins = on.WorkerJoined(at_seconds=3.0, worker="ann", running=attempt)
        output = scheduler.handle(joins)
        given_up = [fact for fact in output.facts if isinstance(fact, out.GivenUp)]
        assert bool(given_up) == (attempt != assigned.attempt)
        assert output.commands == []
    free = on.WorkerJoined(at_seconds=4.0, worker="ann") if registers else None
    output = scheduler.handle(free or make.beat("ann", at_seconds=4.0))
    [again] = [fact for fact in output.facts if isinstance(fact, out.Assigned)]
    assert again.attempt == make.attempt("one", 0, 0, 1)


def test_all_other_attempts_of_a_worker_are_unwanted(make: Make) -> None:
    """A worker may go on with what it was given; a stranger with nothing."""
    scheduler, assigned = begin(make)
    wanted = make.progress(assigned.attempt)
    other = make.progress(make.attempt("one", 0, 0, 7))
    assert scheduler.unwanted("ann", [wanted, other]) == [other.attempt]
    assert scheduler.unwanted("bob", [wanted]) == [wanted.attempt]
    assert scheduler.unwanted("bob", []) == []


def test_time_does_not_run_backwards(make: Make) -> None:
    """An event that comes late carries an earlier time, which changes no worker's age."""
    scheduler, assigned = begin(make)
    output = scheduler.handle(
        on.UpdatePublished(
            at_seconds=-5.0, worker="ann", attempt=assigned.attempt, update=make.update("u")
        )
    )
    accepted = output.facts[0]
    assert isinstance(accepted, out.Accepted)
    assert (accepted.completion_seconds, scheduler.state.now_seconds) == (0.0, 2.0)


def test_patience_is_an_option(make: Make) -> None:
    """A worker is lost after ten silent seconds times the patience, and not before."""
    scheduler, _ = begin(make, 10.0)
    assert scheduler.handle(on.Tick(at_seconds=100.0)) == Output()
    output = scheduler.handle(on.Tick(at_seconds=101.0))
    happened = [out.Dismissed, out.GivenUp, out.Concluded]
    assert [type(fact) for fact in output.facts] == happened
    assert scheduler.state.experiments["one"].reason == (
        "shard 0 of round 1 failed once (on ann), last: no heartbeat for 101 s"
    )


def test_each_fact_names_its_cause(make: Make) -> None:
    """Events are counted from 1; whatever follows from one carries its number."""
    scheduler, assigned = begin(make)
    assert assigned.cause == scheduler.state.cause == 3


def test_a_failed_aggregation_names_a_shard() -> None:
    """Without a shard the round would stay complete, and never be aggregated."""
    with pytest.raises(ValueError, match="at least one shard"):
        on.AggregationFailed(at_seconds=0.0, experiment="one", round=0, reasons=())
