"""When a slow worker stands by although shards wait, and when it helps."""

from dataclasses import replace
from statistics import median

import pytest
from hypothesis import given
from hypothesis import strategies as st

from downpour.core.stragglers.base import RoundView, UpdateTimes
from downpour.core.stragglers.outlook import Outlook, median_above_zero, quantile
from downpour.core.stragglers.pairing import Prospects, hindrances
from tests.core.stragglers.rounds import (
    actions_of,
    decide,
    measured,
    round_of,
    running,
    standing_by,
)

FAST = ("ann", "bob")


def test_a_quantile_lies_between_its_neighbors() -> None:
    """As far from the lower one as its share says, and never above the largest."""
    assert [quantile([5.0, 1.0, 3.0], share) for share in (0.0, 0.25, 0.5, 1.0, 2.0)] == [
        1,
        2,
        3,
        5,
        5,
    ]
    assert quantile([1.0, 5.0], 0.25) == 2.0
    assert quantile([], 0.25) == 0.0


def test_a_shard_without_samples_has_no_pace() -> None:
    """Nothing is divided by their number."""
    view = replace(round_of(), published=UpdateTimes([(0, 3.0)]))
    assert Outlook(view).pace_seconds is None
    assert Outlook(replace(view, published=UpdateTimes([(1, 3.0)]))).pace_seconds == 3.0


TIMES = st.lists(st.sampled_from([0.0, 1.0, 2.5, 4.0, 9.0]), max_size=40)


@given(published=TIMES, refused=TIMES, others=TIMES)
def test_a_median_of_many_is_that_of_all(
    published: list[float], refused: list[float], others: list[float]
) -> None:
    """The shortcut skips most numbers and finds the same median; refused updates do not count."""
    times = UpdateTimes((2, seconds) for seconds in [*published, *refused])
    for seconds in refused:
        times.remove(2, seconds)
    assert times.paces == sorted(seconds / 2 for seconds in published)
    known = [seconds for seconds in [*published, *others] if seconds > 0]
    assert median_above_zero(times.seconds, others) == (median(known) if known else None)


def test_a_usual_shard_follows_from_forecasts_before_any_update() -> None:
    """What took or takes no time counts in neither."""
    begins = Outlook(round_of(pending=1, paces={"ann": 10.0, "bob": 0.0}))
    assert begins.pace_seconds == pytest.approx(0.1)
    assert begins.typical_seconds == pytest.approx(10.0)
    assert Outlook(round_of(published=[0.0, 20.0])).typical_seconds == 20.0


def beginning(pending: int, slow_seconds: float, steps: int = 100) -> RoundView:
    """Return a round that begins: ann and bob take ten seconds for a shard, eve takes others."""
    view = round_of(idle="eve ann bob", pending=pending, begun=False, elapsed=0.0)
    speeds = {**dict.fromkeys(FAST, measured(10.0)), "eve": measured(slow_seconds, steps)}
    return replace(view, speeds=speeds)


def given_to(view: RoundView) -> set[str]:
    """Return the workers that are given a shard."""
    return {
        line.split()[2] for line in actions_of("handoff", view) if line.startswith("Assignment")
    }


def test_a_worker_that_would_hold_up_the_round_stands_by_with_a_reason() -> None:
    """Eve does a thirtieth of a shard until another worker is free, which then waits 3 s for her.

    Alone, ann and bob need twenty seconds for four shards.
    """
    view = beginning(pending=4, slow_seconds=300.0)
    assert given_to(view) == set(FAST)
    line = "eve stands by: at its speed, a shard there would cost 14% of the time"
    assert standing_by(view) == {"eve": line}


def test_nobody_is_told_of_a_cost_of_nothing() -> None:
    """Eve's step takes as long as what she would do meanwhile saves, within half a percent."""
    view = beginning(pending=4, slow_seconds=96.0)
    assert standing_by(view) == {
        "eve": "eve stands by: at its speed, a shard there would end no sooner"
    }


def test_a_worker_that_saves_more_than_it_costs_gets_a_shard() -> None:
    """At a quarter of the speed, or where a step is short, somebody goes on where eve stands."""
    for view in (
        beginning(pending=4, slow_seconds=40.0),
        beginning(pending=4, slow_seconds=300.0, steps=2000),
    ):
        assert given_to(view) == {*FAST, "eve"}
        assert standing_by(view) == {}


def test_the_last_shard_goes_to_a_slow_worker_with_which_the_others_exchange() -> None:
    """Three shards take ann and bob 20 s, and 15 if each rests on eve for a while."""
    assert given_to(beginning(pending=3, slow_seconds=100.0)) == {*FAST, "eve"}


def test_a_worker_of_unknown_speed_gets_a_shard() -> None:
    """So it is in the first round; what is late is handed over once speeds are known."""
    view = beginning(pending=4, slow_seconds=300.0)
    unknown = {name: view.speeds[name] for name in FAST}
    assert given_to(replace(view, speeds=unknown)) == {*FAST, "eve"}
    assert given_to(replace(view, speeds={})) == {*FAST, "eve"}


def test_a_worker_that_never_made_a_step_stands_by() -> None:
    """Of eve it is known that she made none of a hundred steps in three seconds."""
    view = beginning(pending=4, slow_seconds=300.0)
    bound = replace(view.speeds["eve"], share=0.01, variance=None, at_most=True)
    assert given_to(replace(view, speeds={**view.speeds, "eve": bound})) == set(FAST)


def test_a_weak_bound_makes_nobody_slow_or_fast() -> None:
    """Eve was stopped a moment after she had begun, which says nothing of her, nor of others."""
    view = beginning(pending=4, slow_seconds=0.1)
    bound = replace(view.speeds["eve"], share=0.01, variance=None, at_most=True)
    assert given_to(replace(view, speeds={**view.speeds, "eve": bound})) == {*FAST, "eve"}
    assert given_to(replace(view, speeds={"eve": bound})) == {*FAST, "eve"}


def test_a_single_worker_trains_however_slow() -> None:
    """What others did before they left says nothing of this round."""
    view = beginning(pending=2, slow_seconds=300.0)
    assert given_to(replace(view, idle=("eve",), workers=("eve",))) == {"eve"}


def test_a_failed_shard_goes_to_a_worker_that_has_not_tried_it() -> None:
    """No fast worker is waited for, nor is one if the shard was handed over to a slow one."""
    view = beginning(pending=4, slow_seconds=300.0)
    first, *others = view.pending
    for task in (replace(first, failed_on=FAST), replace(first, meant_for="eve")):
        assert given_to(replace(view, pending=(task, *others))) == {*FAST, "eve"}


def test_a_shard_that_only_a_slow_worker_may_train_goes_to_it() -> None:
    """The others lack what the shard needs."""
    view = beginning(pending=4, slow_seconds=300.0)
    barred = dict.fromkeys(range(4), frozenset(FAST))
    assert given_to(replace(view, barred=barred)) == {"eve"}
    assert given_to(replace(view, barred={0: frozenset(FAST)})) == {*FAST, "eve"}


def test_a_last_shard_is_shared_with_the_busy_workers() -> None:
    """A slow worker begins it, and exchanges make all workers end together, after 10.8 s."""
    prospects = Prospects(fastest=10.0, free_in=(8.0, 9.0), waiting=1, move_seconds=0.5)
    shared = (10.0 + 8.0 + 9.0) / (2 + 10.0 / 20.0)
    assert prospects.loss(100, 5.0, 0.1) == pytest.approx((shared + 0.6) / 18.0 - 1)
    assert prospects.loss(100, 1000.0, 0.1) == pytest.approx(0.1 / 18.0 - 1)


def test_the_end_of_a_round_is_not_waited_for() -> None:
    """Bob is nearly done, so the last shard is his: on eve it would be of no use to anybody."""
    view = beginning(pending=1, slow_seconds=300.0)
    tasks = [running("bob", 0, 0.99, 9.9), running("ann", 1, 0.0, 0.1)]
    last = round_of(tasks, idle="eve", pending=1, published=[10.0, 10.0])
    assert given_to(replace(last, speeds=view.speeds)) == set()
    starting = (tasks[0], replace(tasks[1], is_starting=True))
    assert given_to(replace(last, speeds=view.speeds, running=starting)) == set()


@given(
    pending=st.integers(3, 9),
    slow_seconds=st.floats(25.0, 1000.0),
    steps=st.integers(1, 1000),
    more=st.integers(1, 1000),
)
def test_a_worker_that_helps_with_long_steps_helps_with_short_ones(
    pending: int, slow_seconds: float, steps: int, more: int
) -> None:
    """Only the time for a step and a move speaks against a worker; and somebody always trains."""
    few = beginning(pending, slow_seconds, steps)
    many = beginning(pending, slow_seconds, steps + more)
    assert given_to(many) >= given_to(few) >= set(FAST)
    choices = [a for a in decide("handoff", many) if hasattr(a, "reason")]
    assert all(loss >= 0 for loss in hindrances(many, Outlook(many), choices).values())  # type: ignore[arg-type]
