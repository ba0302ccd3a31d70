"""What the scenarios do not show: fields of the core that drivers read, and odd beginnings."""

from typing import Any

import pytest

from downpour.core.scheduler import events as on
from downpour.core.scheduler import outputs as out
from tests.core.scheduler import make
from tests.core.scheduler.stage import Play, of


def begin(patience: float = 1.0, **fields: Any) -> tuple[Play, out.Assigned]:
    """Return a scheduler whose only worker, ann, has just been given the only shard."""
    play = Play(patience=patience)
    play.join("ann", at_seconds=0.0)
    [assigned, asked] = play.submit(10, **{"epochs": 1, "retries": 0, **fields})
    assert isinstance(assigned, out.Assigned)
    assert asked == out.Assign(assigned)
    return play, assigned


def test_a_version_is_taken_in_once() -> None:
    """A repeated report is none of the next version, nor is a failure of the old one."""
    play, _ = begin(epochs=3)
    play.publish("ann")
    play.aggregate()
    play.publish("ann", number=1)
    assert play.aggregate() == []
    reasons = ((0, "altered"),)
    assert play.happen(on.AggregationFailed, experiment="one", round=0, reasons=reasons) == []


def test_an_update_that_came_meanwhile_makes_the_next_version() -> None:
    """If shards are rounds apart; it is asked for before any file is removed."""
    play = Play()
    play.join("ann", "bob")
    play.submit(10, 10, mode="fedasync")
    for shard, worker in enumerate(("ann", "bob")):
        play.publish(worker, shard)
    following, removed = of(play.aggregate(parts=((0, 0),)), out.Aggregate | out.Discard)
    assert isinstance(following, out.Aggregate)
    assert (following.round, following.shards) == (1, (1,))
    assert isinstance(removed, out.Discard)


def test_a_shard_of_easgd_continues_with_its_own_parameters() -> None:
    """Which are in one file, and no version of the model."""
    play, _ = begin(epochs=2, mode="easgd")
    play.publish("ann")
    [again] = of(play.aggregate(own=(make.file("own"),), parts=((0, 0),)), out.Assign)
    assert (again.assigned.model, again.leading) == (make.file("own"), ())


def test_shards_that_nobody_asked_for_end_the_experiment() -> None:
    """Training on another number of shards than the spec says would be another experiment."""
    play = Play()
    play.happen(on.ExperimentSubmitted, experiment="one", spec=make.spec(shards=2))
    concluded, conclude = play.prepare(10)
    assert isinstance(concluded, out.Concluded)
    assert isinstance(conclude, out.Conclude)
    assert concluded.reason.endswith("cut into 1 shards instead of 2")


def test_an_experiment_that_ends_names_the_versions_that_stay() -> None:
    """Others were published by managers that had been replaced."""
    play, assigned = begin()
    happened = play.happen(on.ExperimentCancelled, experiment="one", reason="enough")
    [conclude] = of(happened, out.Conclude)
    assert conclude.versions == (assigned.model,)


def test_what_is_measured_kept_and_published_are_means_if_versions_are_ahead_of_them() -> None:
    """Each is made for a round that is measured, and goes with its version."""
    play, _ = begin(epochs=2, meet=2, outer="nesterov", keep_models=1, keep_best="loss")
    second, last = make.file("mean2"), make.file("mean4")
    for number, mean in enumerate((None, second, None, last)):
        [asked] = of(play.publish("ann", number=number), out.Aggregate)
        assert asked.keeps_mean == (mean is not None)
        play.aggregate(number, mean=mean)
        if mean is not None:
            measured = make.evaluation(loss=number)
            play.happen(on.Evaluated, experiment="one", round=number, evaluation=measured)
    assert [command.model for command in of(play.happened, out.Evaluate)] == [second, last]
    [publish] = of(play.happened, out.Publish)
    assert (publish.model, publish.best) == (last, second)
    happened = play.happen(on.ModelPublished, experiment="one", model=make.file("final"))
    [discard], [conclude] = of(happened, out.Discard), of(happened, out.Conclude)
    assert discard.files == (make.file("m2"), second)
    assert conclude.versions == (last, make.file("m4"))


@pytest.mark.parametrize(
    ("epochs", "said"), [(3, ["stopped after epoch 2: no better loss since epoch 1"]), (2, [])]
)
def test_a_training_that_stops_early_says_so(epochs: int, said: list[str]) -> None:
    """One whose rounds are all done does not."""
    play, _ = begin(epochs=epochs, stop_after=1)
    for number in (0, 1):
        play.publish("ann", number=number)
        play.aggregate(number)
        measured = make.evaluation()
        play.happen(on.Evaluated, experiment="one", round=number, evaluation=measured)
    assert play.said == said


def test_a_resumption_without_patience_left_publishes_at_once() -> None:
    """Its shards have nothing to train."""
    play = Play()
    before = {"init_from": "x", "rounds_before": 6, "best_checksum": "0", "stop_after": 2}
    spec = make.spec(shards=1, **before)
    play.happen(on.ExperimentSubmitted, experiment="one", spec=spec)
    handed_on = on.HandedOn(best=on.Best(round=-5, value=0.5, model=None))
    improved, publish = play.prepare(10, handed_on=handed_on)
    assert isinstance(improved, out.Improved)
    assert isinstance(publish, out.Publish)


def test_a_heartbeat_tells_how_far_an_attempt_is() -> None:
    """Also without a snapshot that it has withdrawn; it is shown until the attempt is over."""
    play, assigned = begin()
    progress, ann = make.progress(assigned.attempt), play.worker("ann")
    play.beat("ann", make.progress(assigned.attempt, saved="s1"), at_seconds=3.0)
    play.beat("ann", progress, at_seconds=4.0)
    assert (ann.progress, ann.system, ann.seen_at_seconds) == (progress, make.SYSTEM, 4.0)
    play.publish("ann", at_seconds=6.0)
    assert (ann.progress, ann.running, ann.tasks_done, ann.seen_at_seconds) == (None, None, 1, 6.0)
    assert ann.longest_pause_seconds == 3.0, "the one before its update"


@pytest.mark.parametrize("registers", [False, True])
def test_a_worker_that_registers_with_an_attempt_continues_it(*, registers: bool) -> None:
    """With one of another manager, it gets no work before it says that it has none."""
    play, assigned = begin(retries=1)
    assert play.join("ann", running=assigned.attempt) == []
    [given_up] = play.join("ann", running=make.attempt("other", 0, 0, 0))
    assert isinstance(given_up, out.GivenUp)
    [again] = of(play.join("ann") if registers else play.beat("ann"), out.Assigned)
    assert again.attempt == make.attempt("one", 0, 0, 1)


def test_all_other_attempts_of_a_worker_are_unwanted() -> None:
    """A worker may go on with what it was given; a stranger with nothing."""
    play, assigned = begin()
    wanted = make.progress(assigned.attempt)
    other = make.progress(make.attempt("one", 0, 0, 7))
    assert play.core.unwanted("ann", [wanted, other]) == [other.attempt]
    assert play.core.unwanted("bob", [wanted]) == [wanted.attempt]
    assert play.core.unwanted("bob", []) == []


def test_time_does_not_run_backwards() -> None:
    """An event that comes late carries an earlier time, which changes no worker's age."""
    play, _ = begin()
    [accepted] = of(play.publish("ann", at_seconds=-5.0), out.Accepted)
    assert (accepted.completion_seconds, play.core.state.now_seconds) == (0.0, 2.0)


def test_patience_is_an_option() -> None:
    """A worker is lost after ten silent seconds times the patience, and not before."""
    play, _ = begin(10.0)
    assert play.happen(on.Tick, 100.0) == []
    dismissed, given_up, concluded, *_ = play.happen(on.Tick, 101.0)
    assert isinstance(dismissed, out.Dismissed)
    assert isinstance(given_up, out.GivenUp)
    assert isinstance(concluded, out.Concluded)
    why = "shard 0 of round 1 failed once (on ann), last: no heartbeat for 101 s"
    assert concluded.reason == why


def test_a_failed_aggregation_names_a_shard() -> None:
    """Without a shard the round would stay complete, and never be aggregated."""
    with pytest.raises(ValueError, match="at least one shard"):
        on.AggregationFailed(at_seconds=0.0, experiment="one", round=0, reasons=())
