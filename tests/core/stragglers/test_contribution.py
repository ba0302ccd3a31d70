"""Numbers that policies compare and tell: chances, late shards, what a worker contributes."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from downpour.base.values import Forecast
from downpour.core.stragglers.base import Close, RoundView, Speed, Waiting
from downpour.core.stragglers.handoff import Lineup, contributions
from downpour.core.stragglers.outlook import Outlook, chance_above
from tests.core.stragglers.rounds import (
    actions_of,
    decide,
    measured,
    round_of,
    running,
    standing_by,
    sure,
)


def view(seconds: Mapping[str, float], steps: int = 100) -> RoundView:
    """Return a round whose workers take `seconds` for a shard."""
    speeds = {name: measured(own, steps) for name, own in seconds.items()}
    return replace(round_of(idle=" ".join(seconds)), speeds=speeds)


def told(seconds: Mapping[str, float], shards: int) -> dict[str, tuple[int, bool]]:
    """Return for each worker what it saves, in percent, and whether it stands by."""
    found = contributions(view(seconds), (100,) * shards, list(seconds))
    return {name: (round(100 * one.share), one.stands_by) for name, one in found.items()}


def test_equal_workers_save_the_time_that_the_others_would_need() -> None:
    """With a shard each, one fewer makes two rounds of one; a third worker has nothing to do."""
    assert told({"ann": 10.0, "bob": 10.0}, 2) == {"ann": (50, False), "bob": (50, False)}
    equal = told({"ann": 10.0, "bob": 10.0, "eve": 10.0}, 2)
    assert equal == {"ann": (0, False), "bob": (0, False), "eve": (0, True)}


def test_a_worker_that_would_hold_up_the_round_stands_by_at_its_cost() -> None:
    """The same as in the line that `handoff` logs at its decision: one rule decides both."""
    seconds = {"ann": 10.0, "bob": 10.0, "eve": 300.0}
    assert told(seconds, 4) == {"ann": (50, False), "bob": (50, False), "eve": (-14, True)}
    begins = replace(round_of(idle="eve ann bob", pending=4, begun=False, elapsed=0.0))
    line = standing_by(replace(begins, speeds=view(seconds).speeds))["eve"]
    assert line.endswith("would cost 14% of the time")


def test_a_slow_worker_that_takes_turns_saves_time() -> None:
    """Three shards take two workers 20 s; divided among three they take less."""
    assert told({"ann": 10.0, "bob": 10.0, "eve": 40.0}, 3)["eve"] == (26, False)
    assert told({"ann": 10.0, "bob": 10.0, "eve": 20.0}, 3)["eve"] == (36, False)


def test_a_very_slow_worker_costs_time_where_it_is_given_the_last_shard() -> None:
    """Its steps take so long that the exchanges cost more than its work saves."""
    assert told({"ann": 10.0, "bob": 10.0, "eve": 300.0}, 3)["eve"] == (-20, False)


def test_a_spare_worker_that_users_asked_for_is_the_slowest() -> None:
    """It is kept free of shards, so it stands by."""
    spare = replace(view({"ann": 10.0, "bob": 11.0, "eve": 12.0}), standbys=1)
    found = contributions(spare, (100, 100, 100), ["ann", "eve"])
    assert {name: one.stands_by for name, one in found.items()} == {"ann": False, "eve": True}


@pytest.mark.parametrize(
    "unclear",
    [
        lambda one: replace(one, workers=("ann",)),
        lambda one: replace(one, workers=(*one.workers, "cid")),
        lambda one: replace(one, barred={0: frozenset({"ann"})}),
        lambda one: replace(one, running=(running("cid", 0, 0.1),)),
        lambda one: replace(
            one,
            running=(replace(running("ann", 0, 0.1), remaining=sure(inf)),),
            speeds={**one.speeds, "ann": Speed(samples_per_second=0.0, share=0.1)},
        ),
        lambda one: replace(
            one, speeds={name: replace(own, variance=None) for name, own in one.speeds.items()}
        ),
    ],
    ids=["alone", "unknown", "needs", "not measured yet", "no end", "one interval"],
)
def test_where_too_little_is_known_nothing_is_said(unclear: object) -> None:
    """Of nobody: what one worker saves depends on the speeds of all."""
    clear = view({"ann": 10.0, "bob": 10.0})
    assert len(contributions(clear, (100, 100), ["ann", "bob"])) == 2
    assert contributions(unclear(clear), (100, 100), ["ann", "bob"]) == {}  # type: ignore[operator]


def test_only_who_is_asked_for_is_told_of() -> None:
    """A screenful of many workers; names that are not here are left out."""
    seconds = {f"w{number}": 10.0 for number in range(9)}
    assert set(contributions(view(seconds), (100,) * 9, ["w1", "gone"])) == {"w1"}


def lineup(seconds: Sequence[float], sizes: Sequence[int], steps: int = 100) -> Lineup:
    """Return workers, each with its seconds for a hundred samples, and the steps of that."""
    known = {f"w{number}": own for number, own in enumerate(seconds)}
    made = Lineup.of(view(known, steps), sizes)
    assert made is not None
    return made


@pytest.mark.parametrize(("sizes", "seconds"), [((100,), 10.0), ((100, 50), 10.0), ((150,), 15.0)])
def test_a_shard_begins_at_once(sizes: tuple[int, ...], seconds: float) -> None:
    """The round takes as long as its longest shard if each has a worker."""
    assert lineup([10.0, 10.0], sizes).plan().seconds == pytest.approx(seconds)


@pytest.mark.parametrize(
    ("workers", "sizes", "steps", "seconds"),
    [
        ((0.1, 0.4), (400, 400), 100, 0.64 + 3 * 0.104),
        ((25.0, 100.0), (300, 100), 100, 100.0),
        ((12.5, 25.0, 100.0), (100, 100, 100), 100, 25.0),
        ((10.0, 25.0), (300, 100, 100), 2, 40.0),
        ((12.0, 20.0, 30.0), (100, 100, 50), 100, 15.0 + 3 * 0.3),
        ((10.0, 20.0, 20.0), (100, 100), 100, 200 / 15 + 3 * 0.3),
        ((10.0, 10.0, 40.0, 50.0), (100,) * 5, 100, 10.0 + (255 + 6) / 22.5 + 3 * 0.5),
    ],
    ids=[
        "exchanges, each at the cost of a step and a move, three in a row",
        "a slow worker that would end with the fast one stands by",
        "half as fast as the fastest is fast",
        "a slow worker gets no second shard where the fast one is soon free",
        "who ends with the balanced work exchanges nothing",
        "an idle worker that is not faster takes over nothing",
        "an idle fast worker takes over, and the wait for it counts as work of its own",
    ],
)
def test_a_round_ends_as_worked_out_by_hand(
    workers: Sequence[float], sizes: Sequence[int], steps: int, seconds: float
) -> None:
    """Balanced work, as far as shards and speeds allow it, and what the moves cost."""
    assert lineup(workers, sizes, steps).plan().seconds == pytest.approx(seconds)


@given(
    seconds=st.lists(st.floats(1.0, 100.0), min_size=2, max_size=6),
    sizes=st.lists(st.integers(1, 1000), min_size=1, max_size=12),
)
def test_a_round_takes_no_less_than_its_work_and_no_more_than_alone(
    seconds: list[float], sizes: list[int]
) -> None:
    """All workers together, or the fastest with the largest shard, are the least."""
    planned = lineup(seconds, sizes).plan()
    speeds = [100 / own for own in seconds]
    least = max(sum(sizes) / sum(speeds), max(sizes) / max(speeds))
    assert least <= planned.seconds * (1 + 1e-9)
    assert planned.seconds <= sum(sizes) / min(speeds) * (1 + 1e-9)
    assert planned.begin


@given(
    seconds=st.lists(st.floats(10.0, 19.0), min_size=1, max_size=6),
    sizes=st.lists(st.integers(100, 100), min_size=2, max_size=12),
)
def test_a_worker_as_fast_as_the_fastest_never_costs_time(
    seconds: list[float], sizes: list[int]
) -> None:
    """One more of them ends a round of equal shards no later."""
    one_more = lineup([min(seconds), *seconds], sizes)
    longer = replace(one_more, members=one_more.members[1:]).plan().seconds
    assert one_more.plan().seconds <= longer * (1 + 1e-9)


@pytest.mark.parametrize(
    ("seconds", "chance"),
    [(0.5, 1.0), (1.0, 0.9), (1.5, 0.7), (3.0, 0.3), (4.5, 0.06), (5.0, 0.0), (9.0, 0.0)],
)
def test_a_chance_lies_between_those_of_the_quantiles(seconds: float, chance: float) -> None:
    """It falls evenly from one to the next; beyond the outermost, nothing is known."""
    forecast = Forecast(q10=1.0, q50=2.0, q90=4.0, q98=5.0)
    assert chance_above(forecast, seconds) == pytest.approx(chance)


def test_a_policy_says_how_many_updates_it_does_not_wait_for() -> None:
    """The counts are of this round, and one update fewer is not enough."""
    tasks = [running("ann", 0, 0.5)]
    told = decide("backup", round_of(tasks, published=[5.0, 5.0, 5.0]))
    reason = "3 of 4 updates are there; 1 not waited for"
    assert told == [Close(reason=reason, leave_running=True)]
    two = [*tasks, running("bob", 1, 0.5)]
    assert decide("backup", round_of(two, published=[5.0, 5.0])) == []


@pytest.mark.parametrize(("attempt", "taken"), [(0, True), (1, True), (2, False)])
def test_a_shard_that_is_late_everywhere_stays_in_the_end(attempt: int, *, taken: bool) -> None:
    """The option counts attempts, and an attempt's number begins at 0."""
    fast = [running(name, shard, 0.5) for shard, name in enumerate(("ann", "bob", "cid"))]
    late = running("dot", 3, 0.05, attempt=attempt)
    view = round_of([*fast, late], idle="eve", standbys=1, published=[10.0] * 4)
    assert bool(decide("replace", view)) is taken
    crowded = round_of([*fast, late], idle="eve", pending=2, published=[10.0] * 4)
    assert ("Withdrawal 3 dot" in actions_of("mantri", crowded)) is taken


def test_the_time_left_follows_from_the_speed_of_an_attempt_however_slow() -> None:
    """Half a sample a second is slow; 0 is none: a large model shows it between two steps."""
    slow = running("ann", 0, 0.1, 20.0)
    assert Outlook(round_of([slow])).left_seconds(slow) == pytest.approx(180.0)
    assert Outlook(round_of([slow])).pace_seconds == pytest.approx(2.0)
    still = {"ann": Speed(samples_per_second=0.0, share=0.2)}
    assert Outlook(replace(round_of([slow]), speeds=still)).left_seconds(slow) == pytest.approx(180)
    lately = {"ann": Speed(samples_per_second=0.25, share=0.2)}
    outlook = Outlook(replace(round_of([slow]), speeds=lately))
    assert outlook.left_seconds(slow) == 360.0
    assert outlook.seconds_for(10, "ann") == 40.0
    assert Outlook(replace(round_of(), speeds=lately)).fastest_first(["bob", "ann"])[0] == "ann"


@pytest.mark.parametrize(("paces", "left"), [({}, 5.0), ({"ann": 20.0}, 6.25)])
def test_the_time_left_counts_from_the_last_report(paces: dict[str, float], left: float) -> None:
    """A quarter took 2.5 s, and as much time has gone by since; a forecast counts a little."""
    task = running("ann", 0, 0.25, 5.0, reported_seconds=2.5)
    assert Outlook(round_of([task], paces=paces)).left_seconds(task) == pytest.approx(left)
    endless = replace(task, remaining=sure(inf))
    assert Outlook(round_of([endless])).left_between(endless) is None
    assert Outlook(round_of([endless])).typical_seconds is None
    over = replace(task, remaining=sure(0.0))
    assert Outlook(round_of([over])).left_between(over) is None
    rest = running("ann", 0, 0.75, 5.0, began_at=0.5)
    assert Outlook(round_of([rest])).typical_seconds == pytest.approx(20.0)


@pytest.mark.parametrize("name", ["handoff", "grass", "mantri", "late", "replace"])
def test_an_attempt_without_an_end_is_said_to_make_no_step(name: str) -> None:
    """Its reason names no infinite seconds, and any other worker would end sooner."""
    fast = [running(worker, shard, 0.5) for shard, worker in enumerate(("ann", "bob", "cid"))]
    endless = replace(running("dot", 3, 0.05), remaining=sure(inf))
    paces = dict.fromkeys(("ann", "bob", "cid", "eve"), 10.0)
    view = round_of([*fast, endless], idle="eve", standbys=1, paces=paces)
    before = Speed(samples_per_second=10.0, share=1.0, age_seconds=99.0)
    action = decide(name, replace(view, speeds={"dot": before}))[0]
    assert not isinstance(action, Waiting)
    assert "makes no step" in action.reason
    assert "inf" not in action.reason


@pytest.mark.parametrize("seconds", [0.0, 5.0])
def test_nothing_is_expected_of_a_first_attempt_without_a_report(seconds: float) -> None:
    """It may still load, so it is neither fast nor stalled."""
    first = running("ann", 0, 0.0, seconds)
    assert Outlook(round_of([first])).left_seconds(first) is None


@pytest.mark.parametrize("usual", [10.0, 0.1])
def test_an_old_speed_is_uncertain(usual: float) -> None:
    """After four usual tasks, however short, half of what it told is forgotten."""
    view = round_of([running("ann", 0, 0.5, usual / 2)])
    old = Speed(samples_per_second=50.0, share=1.0, variance=0.0, age_seconds=4 * usual)
    assert Outlook(replace(view, speeds={"bob": old})).error("bob") == pytest.approx(0.25)


def test_a_long_idle_worker_is_expected_to_be_like_the_slower_ones() -> None:
    """A quarter of those that advance are slower; without others, only its own speed is known."""
    view = round_of([running("ann", 0, 0.5)])
    others = {
        str(speed): Speed(samples_per_second=speed, share=1.0)
        for speed in (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
    }
    old = Speed(samples_per_second=50.0, share=1.0, age_seconds=1e6)
    assert Outlook(replace(view, speeds={**others, "bob": old})).speed("bob") == pytest.approx(0.4)
    assert Outlook(replace(view, speeds={"bob": old})).speed("bob") == pytest.approx(42.0)


@pytest.mark.parametrize(("bound", "expected"), [(2.0, 2.0), (50.0, 10.0)])
def test_a_worker_is_expected_to_be_no_faster_than_its_bound(bound: float, expected: float) -> None:
    """It made no step in that time; a bound above what is usual says nothing."""
    still = Speed(samples_per_second=bound, share=0.01, at_most=True)
    view = replace(round_of([running("ann", 0, 0.5)]), speeds={"bob": still})
    assert Outlook(view).speed("bob") == pytest.approx(expected)


def test_the_error_of_a_speed_falls_with_the_share_measured_and_is_never_above_one() -> None:
    """A variance of 0.01 is an error of a fifth over a quarter of a shard."""
    steady, varied = (
        Speed(samples_per_second=10.0, share=0.25, variance=variance) for variance in (0.0, 0.01)
    )
    outlook = Outlook(replace(round_of(), speeds={"ann": steady, "bob": varied}))
    assert outlook.error("bob") == pytest.approx(0.2)
    wild = replace(steady, variance=4.0)
    task = running("ann", 0, 0.5)
    outlook = Outlook(replace(round_of([task]), speeds={"ann": wild}))
    assert outlook.error("ann") == 1.0
    assert outlook.left_between(task) == pytest.approx((0.0, 5.0 + 1.2816 * 5.0))
