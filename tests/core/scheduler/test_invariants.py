"""The invariants notice a state that contradicts itself; each test violates one, by name."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from downpour.base.states import Failure, FailureKind
from downpour.core.scheduler import events as on
from downpour.core.scheduler.experiment import Experiment
from downpour.core.scheduler.invariants import check_invariants
from downpour.core.scheduler.queue import SchedulerState
from downpour.core.scheduler.round import Round, TaskKey
from tests.core.scheduler import make
from tests.core.scheduler.stage import Play

LOST = Failure(FailureKind.LOST, "gone")
Falsify = Callable[[SchedulerState, Experiment, Round], object]


def unknown_attempt(state: SchedulerState, *_: object) -> None:
    """Make ann busy with an attempt of no round."""
    ann, _bob = state.workers
    assert ann.running is not None
    ann.running = replace(ann.running, round=7)


def nobody_trains(state: SchedulerState, _: Experiment, current: Round) -> None:
    """Take back all shards, and assign none again."""
    for attempt, name in current.holders():
        state.workers.release(name, attempt)
        current.give_up(attempt.shard, name, None)


def nobodys_turn(state: SchedulerState, experiment: Experiment, _: Round) -> None:
    """End an experiment, and let the next one wait."""
    experiment.life.step("cancel")
    state.open.clear()


def standstill(state: SchedulerState, experiment: Experiment, _: Round) -> None:
    """Let an experiment run without a round."""
    for worker in list(state.workers):
        state.workers.remove(worker.name)
    experiment.rounds = []


def held_up(state: SchedulerState, experiment: Experiment, current: Round) -> None:
    """Let an experiment wait for an evaluation when it need not."""
    standstill(state, experiment, current)
    experiment.evaluating[0] = experiment.model


def lost_best(_: SchedulerState, experiment: Experiment, __: Round) -> None:
    """Remove the best model."""
    experiment.best = on.Best(round=0, value=1.0, model=make.file("gone"))


def unused_updates(state: SchedulerState, experiment: Experiment, current: Round) -> None:
    """Make no version of a whole round."""
    nobody_trains(state, experiment, current)
    for shard in range(3):
        attempt = current.assign(shard, "ann", 0.0)
        accepted = make.accepted(attempt, "ann", make.update("u"))
        current.publish(accepted, 1.0)
        experiment.arrive(accepted, 1.0)


CASES: list[tuple[Falsify, str]] = [
    (
        lambda s, _, __: vars(s.workers.get("bob")).update(running=s.workers.get("ann").running),  # type: ignore[union-attr]
        "bob is busy with a task that is held by",
    ),
    (lambda s, _, __: s.open.clear(), r"open should be \[\], but open are one"),
    (lambda _, __, r: vars(r).update(published=1), "counts 1 published"),
    (lambda _, __, r: r._pending.clear(), r"offers the shards \[\]"),
    (lambda _, __, r: r._held.remove(1), r"holds \[0\]"),
    (lambda s, _, __: s.workers._idle.update(ann=None), "does not agree with the workers' states"),
    (
        lambda _, e, __: vars(e).update(applying=(TaskKey(0, 0), TaskKey(0, 2))),
        "applies .*, which it does not have",
    ),
    (lambda s, _, __: s.workers.remove("bob"), "should run on bob, which does not run it"),
    (
        lambda _, __, r: r.tasks[2].failed.extend([LOST] * 99),
        "has failed 99 times, and the experiment goes on",
    ),
    (standstill, "stands still and waits for nothing"),
    (held_up, "may go on and does not"),
    (
        lambda _, e, __: vars(e).update(publishing=True),
        "publishes a model, but something of it goes on",
    ),
    (lambda _, e, __: vars(e).update(result=e.model), "is running, and its result is"),
    (lambda _, e, __: e.models.clear(), "runs without a model"),
    (unknown_attempt, "is busy with .*, which no round waits for"),
    (nobody_trains, "policy 'wait' assigns nothing although .* idle"),
    (nobodys_turn, "an experiment waits although none is open"),
    (lambda s, _, __: vars(s.experiments["two"]).update(rounds_done=3), "has done 3 of 2 rounds"),
    (lost_best, "has let its best model go"),
    (unused_updates, "is complete, but not treated so"),
    (lambda s, _, __: s.experiments["two"].life.step("cancel"), "does not say why"),
    (lambda s, _, r: s.experiments["two"].rounds.append(r), "something of it goes on"),
    (lambda _, e, __: e.start_round(), "has 2 open rounds, more than 1"),
    (lambda _, e, __: e.models.extend(e.models * 4), "holds 5 models, more than 4"),
    (
        lambda _, e, __: e.evaluating.update(dict.fromkeys((0, 1), e.model)),
        r"runs ahead of its evaluations \[0, 1\]",
    ),
    (
        lambda _, e, __: e.evaluating.update({0: make.file("gone")}),
        "evaluates a model that it no longer holds",
    ),
    (lambda _, __, r: r.held_back.add(0), r"holds the shards \{0\} back, and not set()"),
    (lambda _, __, r: r._waiting.update({0: 9.0}), r"lets the shards \[0\] wait"),
    (
        lambda _, __, r: r.tasks[2].held_by.update(r.tasks[0].held_by),
        r"is pending, held by \['ann'\]",
    ),
    (lambda _, __, r: r.tasks[2].failed.append(LOST), r"has failed 1 times, but on \(\)"),
]


@pytest.mark.parametrize(("falsify", "sentence"), CASES)
def test_a_broken_invariant_is_named(falsify: Falsify, sentence: str) -> None:
    """In the middle of a round: ann and bob train, shard 2 is pending, an experiment waits."""
    play = Play()
    play.join("ann", "bob")
    play.submit(10, 10, 10, keep_best="loss")
    play.happen(on.ExperimentSubmitted, experiment="two", spec=make.spec())
    state = play.core.state
    assert state.active is not None
    assert state.active.round is not None
    falsify(state, state.active, state.active.round)
    with pytest.raises(AssertionError, match=sentence):
        check_invariants(state)
