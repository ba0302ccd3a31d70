"""What `handoff` moves where to, and what it leaves alone."""

from __future__ import annotations

from dataclasses import replace

import pytest

from downpour.base.values import Forecast
from downpour.core.stragglers import PendingTask, RoundView, Speed, Waiting
from downpour.core.stragglers.handoff import HANDOFF
from tests.core.stragglers.rounds import actions_of, round_of, running

LATE = [
    running("ann", 0, 0.5),
    running("bob", 1, 0.5),
    running("cid", 2, 0.5),
    running("dot", 3, 0.2),
]
FAST = {"ann": 10.0, "bob": 10.0, "cid": 10.0, "eve": 10.0}
STAYS = ["Waiting 3 dot"]


def test_what_is_late_goes_to_an_idle_worker_where_it_stands() -> None:
    """The reason says what was forecast and what is gained."""
    view = round_of(LATE, idle="eve", paces=FAST)
    (move,) = HANDOFF.decide(view)
    assert actions_of(HANDOFF, view) == ["Handoff 3 dot eve"]
    assert move.reason.startswith("forecast ")
    assert "median 10.0 s; eve would end " in move.reason


@pytest.mark.parametrize(
    ("pace", "why"),
    [
        (60.0, "fay would end no sooner"),
        (24.6, "fay would end 0.2 s sooner, but a move must save 0.2 s"),
    ],
)
def test_what_stays_although_it_is_late_is_explained(pace: float, why: str) -> None:
    """Users see what the round waits for, and why nothing is done."""
    paces = {"dot": 25.0, "fay": pace}
    view = round_of(LATE[3:], idle="fay", published=[10.0] * 3, paces=paces)
    (stays,) = HANDOFF.decide(view)
    assert isinstance(stays, Waiting)
    assert stays.reason == f"forecast 25.0 s, 5.0 s elapsed; {why}"


def test_a_forecast_is_told_with_its_band() -> None:
    """The seconds from the assignment on, in eight cases of ten."""
    ahead = Forecast(q10=17.0, q50=20.0, q90=26.0, q98=30.0)
    late = replace(LATE[3], remaining=ahead, reported_seconds=1.0)
    view = round_of([late], idle="fay", published=[10.0] * 3, paces={"fay": 60.0})
    (stays,) = HANDOFF.decide(view)
    assert isinstance(stays, Waiting)
    assert stays.reason.startswith("forecast 24.0 s (21.0–30.0), 5.0 s elapsed; ")


def test_a_measured_speed_brings_its_own_band() -> None:
    """The forecast said 20 s; the steps since then say 40 s, give or take a fifth."""
    ahead = Forecast(q10=17.0, q50=20.0, q90=26.0, q98=30.0)
    late = replace(LATE[3], remaining=ahead)
    view = round_of([late], idle="fay", published=[10.0] * 3, paces={"fay": 60.0})
    measured = Speed(samples_per_second=2.0, share=1.0, variance=(0.2 / 1.2816) ** 2)
    (stays,) = HANDOFF.decide(replace(view, speeds={"dot": measured}))
    assert stays.reason.startswith("forecast 45.0 s (37.0–53.0), 5.0 s elapsed; ")


def test_the_fastest_idle_worker_is_chosen() -> None:
    """Not the one that has waited longest."""
    view = round_of(LATE, idle="fay eve", paces={**FAST, "fay": 15.0})
    assert actions_of(HANDOFF, view) == ["Handoff 3 dot eve"]


def test_each_late_shard_gets_an_idle_worker_of_its_own() -> None:
    """The latest gets the fastest, and all of it is one decision."""
    late = [*LATE[:2], running("cid", 2, 0.25), LATE[3]]
    paces = {**FAST, "fay": 12.0}
    both = ["Handoff 3 dot eve", "Handoff 2 cid fay"]
    assert actions_of(HANDOFF, round_of(late, idle="fay eve", paces=paces)) == both
    assert actions_of(HANDOFF, round_of(late, idle="eve", paces=paces))[:1] == both[:1]


def test_a_promised_worker_takes_no_stalled_shard() -> None:
    """It continues the shard that was handed over to it."""
    stalled = running("dot", 3, 0.2, 9.0, still_seconds=4.0, saved=0.1)
    view = round_of([*LATE[:3], stalled], idle="eve", paces=FAST)
    given = PendingTask(shard=4, samples=100, meant_for="eve", saved=0.6)
    assert actions_of(HANDOFF, replace(view, pending=(given,))) == ["Assignment 4 eve"]


def test_busy_workers_exchange_where_none_is_idle() -> None:
    """Dot would hold up the round; now it gets what has least left."""
    view = round_of([running("ann", 0, 0.7, 7.0), *LATE[1:]], paces=FAST)
    moves = actions_of(HANDOFF, view)
    assert moves == ["Handoff 3 dot ann", "Handoff 0 ann dot"]


def test_equals_do_not_exchange() -> None:
    """A difference in progress alone says nothing of who is faster."""
    assert actions_of(HANDOFF, round_of([running("ann", 0, 0.5), running("bob", 1, 0.52)])) == []


def test_nearly_equals_do_not_exchange_however_far_apart_they_are() -> None:
    """Bob is a tenth faster and has little left; a fifth faster, it would be worth while."""
    ann = running("ann", 0, 0.3, 3.0)
    assert actions_of(HANDOFF, round_of([ann, running("bob", 1, 0.8, 8.0 / 1.1)])) == []
    assert actions_of(HANDOFF, round_of([ann, running("bob", 1, 0.8, 8.0 / 1.2)])) != []


def test_a_move_near_the_end_does_not_pay() -> None:
    """A few hundredths of a second are left."""
    tasks = [running("ann", 0, 0.99, 9.9), running("dot", 1, 0.985, 12.0)]
    assert actions_of(HANDOFF, round_of(tasks, idle="eve", paces=FAST)) == []


def test_what_an_attempt_takes_beside_training_is_what_a_move_costs() -> None:
    """Dot has sixteen seconds left and eve would take eight: two more, yes; six, no."""
    view = round_of([*LATE[:3], running("dot", 3, 0.2, 4.0)], idle="eve", paces=FAST)
    for overhead, moves in ((0.0, 1), (2.0, 1), (6.0, 0)):
        made = actions_of(HANDOFF, replace(view, overhead_seconds=overhead))
        assert made == (["Handoff 3 dot eve"] if moves else STAYS)


def test_a_task_of_milliseconds_stays_although_no_move_was_measured() -> None:
    """What is known of a worker is a tenth of a second old, about as long as all that is left."""
    tasks = [replace(task, elapsed_seconds=task.elapsed_seconds / 50) for task in LATE]
    paces = {name: seconds / 50 for name, seconds in FAST.items()}
    assert actions_of(HANDOFF, round_of(tasks, idle="eve", paces=paces)) == STAYS


def test_a_worker_that_starts_is_no_straggler() -> None:
    """It imports: its speed is unknown, and it has nothing to hand over."""
    starts = running("dot", 3, 0.0, 0.0, is_starting=True, still_seconds=60.0)
    view = round_of([*LATE[:3], starts], idle="eve", paces={**FAST, "dot": 60.0})
    assert actions_of(HANDOFF, view) == []


def test_nothing_goes_to_a_slower_worker() -> None:
    """Late as it is, it would be later there."""
    paces = {"dot": 25.0, "fay": 60.0}
    view = round_of(LATE[3:], idle="fay", published=[10.0] * 3, paces=paces)
    assert actions_of(HANDOFF, view) == STAYS
    quick = round_of(LATE[3:], idle="fay", published=[10.0] * 3, paces={**paces, "fay": 10.0})
    assert actions_of(HANDOFF, quick) == ["Handoff 3 dot fay"]


def test_one_move_of_a_shard_at_a_time() -> None:
    """What is being handed over is left alone, and so is whom it is meant for."""
    tasks = [*LATE[:3], running("dot", 3, 0.2, meant_for="eve", leaving_seconds=0.1)]
    assert actions_of(HANDOFF, round_of(tasks, idle="eve", paces=FAST)) == []


def test_what_was_moved_settles_first() -> None:
    """Nothing was done of it yet where it is now, so nothing is known of it there."""
    moved = running("dot", 3, 0.2, 0.5, began_at=0.2)
    view = round_of([*LATE[:3], moved], idle="eve", paces={**FAST, "dot": 40.0})
    assert actions_of(HANDOFF, view) == []
    settled = running("dot", 3, 0.23, 1.5, began_at=0.2)
    view = round_of([*LATE[:3], settled], idle="eve", paces={**FAST, "dot": 40.0})
    assert actions_of(HANDOFF, view) == ["Handoff 3 dot eve"]


def test_what_a_stalled_worker_holds_is_trained_beside_it() -> None:
    """It cannot publish; the last snapshot is what there is."""
    stalled = running("dot", 3, 0.2, 9.0, still_seconds=4.0, saved=0.1)
    view = round_of([*LATE[:3], stalled], idle="eve", paces=FAST)
    (move,) = HANDOFF.decide(view)
    assert actions_of(HANDOFF, view) == ["Assignment 3 eve"]
    assert move.reason == "dot makes no step, for 4.0 s now; goes on beside it, after 10%"


def test_a_worker_that_does_not_hand_over_in_time_counts_as_stalled() -> None:
    """Eve, whom it was meant for, begins from the snapshot."""
    stuck = running("dot", 3, 0.2, 9.0, meant_for="eve", leaving_seconds=4.0)
    assert actions_of(HANDOFF, round_of([*LATE[:3], stuck], idle="eve", paces=FAST)) == [
        "Assignment 3 eve"
    ]


def test_a_failed_exchange_leaves_nothing_behind() -> None:
    """Ann gave its shard to dot, which does not come for it: ann goes on with its own."""
    stuck = running("dot", 3, 0.2, 9.0, meant_for="ann", leaving_seconds=4.0)
    view = round_of([*LATE[1:3], stuck], idle="ann", paces=FAST)
    given = PendingTask(shard=0, samples=100, meant_for="dot", saved=0.6)
    assert actions_of(HANDOFF, replace(view, pending=(given,))) == ["Assignment 0 ann"]


def test_a_shard_meant_for_a_worker_that_is_busy_again_goes_to_another() -> None:
    """It would wait for a whole shard."""
    view = round_of(LATE, idle="eve", paces=FAST)
    given = PendingTask(shard=4, samples=100, meant_for="ann", saved=0.6)
    assert actions_of(HANDOFF, replace(view, pending=(given,)))[0] == "Assignment 4 eve"


def test_the_biggest_shard_goes_to_the_fastest() -> None:
    """And the slowest stands by."""
    view = round_of(
        idle="dot ann bob",
        pending=2,
        paces={**FAST, "dot": 30.0, "bob": 8.0},
        standbys=1,
        begun=False,
    )
    first, second = view.pending
    view = replace(view, pending=(first, replace(second, samples=200)))
    assert actions_of(HANDOFF, view) == ["Assignment 1 bob", "Assignment 0 ann"]


def test_between_two_steps_no_worker_is_stalled() -> None:
    """A speed of zero over a few heartbeats is what a large model shows between its steps."""
    view = round_of([running("ann", 0, 0.5, 60.0, still_seconds=2.0)], idle="eve")
    view = replace(view, speeds={"ann": Speed(samples_per_second=0.0, share=0.1)})
    assert actions_of(HANDOFF, view) == []


def speed(samples_per_second: float, variance: float | None, share: float = 0.2) -> Speed:
    """Return how fast a worker was over a fifth of its shard."""
    return Speed(samples_per_second=samples_per_second, share=share, variance=variance)


def late_by_chance(variance: float | None, share: float = 0.2) -> RoundView:
    """Four workers at half of their shards; dot's last steps took twice as long as the others'."""
    tasks = [running(name, n, 0.5, 5.0) for n, name in enumerate(("ann", "bob", "cat", "dot"))]
    view = round_of(tasks, idle="eve", paces=FAST)
    speeds = dict.fromkeys(("ann", "bob", "cat"), speed(10.0, variance, share))
    return replace(view, speeds={**speeds, "dot": speed(5.0, variance, share)})


def test_a_worker_that_is_steadily_slower_hands_over() -> None:
    """What its last steps tell is so."""
    assert actions_of(HANDOFF, late_by_chance(0.0)) == ["Handoff 3 dot eve"]


@pytest.mark.parametrize("variance", [None, 0.05])
def test_steps_that_took_long_by_chance_move_nothing(variance: float | None) -> None:
    """Where single steps differ much, a few slow ones are no sign of a slow worker.

    On throttled processors they moved 2.4 shards a round though all workers were alike, and a first
    round took 4.6 s instead of 3.2 s.
    """
    share = 0.04 if variance is None else 0.2
    assert actions_of(HANDOFF, late_by_chance(variance, share)) == STAYS


def test_no_worker_is_taken_to_be_steadier_than_they_are_on_average() -> None:
    """That its three last reports were equally far apart may be chance as well."""
    view = late_by_chance(0.08)
    steady = {**view.speeds, "dot": speed(5.0, 0.0)}
    assert actions_of(HANDOFF, replace(view, speeds=steady)) == STAYS


def standby_was_slow(age_seconds: float) -> RoundView:
    """Four workers at half of their shards, dot at a fifth; eve was slow when it last trained."""
    tasks = [running(name, n, 0.5, 5.0) for n, name in enumerate(("ann", "bob", "cat"))]
    slow = {"dot": 50.0, "eve": 50.0}
    view = round_of([*tasks, running("dot", 3, 0.1, 5.0)], idle="eve", paces={**FAST, **slow})
    speeds = dict.fromkeys(("ann", "bob", "cat"), speed(10.0, 0.0))
    old = replace(speed(2.0, 0.0), age_seconds=age_seconds)
    return replace(view, speeds={**speeds, "dot": speed(2.0, 0.0), "eve": old})


def test_a_standby_that_was_slow_just_now_takes_nothing() -> None:
    """It would be no sooner; so dot, who is as slow, exchanges with the others."""
    assert "Handoff 3 dot eve" not in actions_of(HANDOFF, standby_was_slow(0.5))


def test_a_standby_that_was_slow_long_ago_is_given_another_try() -> None:
    """Nothing is measured of it while it stands by, so else it would do so for ever."""
    assert actions_of(HANDOFF, standby_was_slow(60.0)) == ["Handoff 3 dot eve"]


def test_a_standby_that_was_slow_begins_no_shard_however_long_ago() -> None:
    """That it is fast again is only hoped, and known of the others."""
    view = replace(standby_was_slow(60.0), running=(), idle=("eve", "ann", "bob", "cat"))
    view = replace(view, pending=round_of(pending=3).pending, begun=False, standbys=1)
    assert not any(line.endswith("eve") for line in actions_of(HANDOFF, view))


def test_no_busy_workers_exchange_while_shards_wait() -> None:
    """Whoever is done next begins one of these: an exchange would end nothing sooner."""
    view = round_of([running("ann", 0, 0.7, 7.0), *LATE[1:]], paces=FAST)
    assert actions_of(HANDOFF, replace(view, shards=view.shards + 1)) == []


def test_the_fewer_workers_the_longer_a_slow_one_keeps_what_it_has() -> None:
    """Of two workers, each should have a shard for half of the round: one exchange is enough."""
    cid = running("cid", 2, 0.05, 2.5)
    two = [running("ann", 0, 0.25, 2.5), cid]
    assert actions_of(HANDOFF, round_of(two)) == []
    four = [*two, running("bob", 1, 0.25, 2.5), running("dot", 3, 0.25, 2.5)]
    assert actions_of(HANDOFF, round_of(four)) != []


def test_an_exchange_costs_as_much_as_a_move() -> None:
    """Both attempts are loaded and published once more."""
    view = round_of([running("ann", 0, 0.7, 7.0), *LATE[1:]], paces=FAST)
    assert len(actions_of(HANDOFF, replace(view, overhead_seconds=3.0))) == 2
    assert actions_of(HANDOFF, replace(view, overhead_seconds=3.5)) == []


def test_a_step_of_a_slow_worker_is_part_of_what_an_exchange_costs() -> None:
    """The other one stands still until it has handed over."""
    tasks = [running("ann", 0, 0.7, 7.0), *LATE[1:]]
    speeds = {task.worker: speed(task.rate * 100, 0.0) for task in tasks}
    view = replace(round_of(tasks), speeds=speeds)
    assert len(actions_of(HANDOFF, view)) == 2
    coarse = {**speeds, "dot": replace(speeds["dot"], step_seconds=12.0)}
    assert actions_of(HANDOFF, replace(view, speeds=coarse)) == []


def test_that_an_unknown_worker_is_fast_is_a_guess() -> None:
    """What is a little late stays; what is far behind is worth the try."""
    little = [*LATE[:3], running("dot", 3, 0.42)]
    assert actions_of(HANDOFF, round_of(little, idle="eve")) == STAYS
    assert actions_of(HANDOFF, round_of(little, idle="eve", paces=FAST)) == ["Handoff 3 dot eve"]
    assert actions_of(HANDOFF, round_of(LATE, idle="eve")) == ["Handoff 3 dot eve"]
