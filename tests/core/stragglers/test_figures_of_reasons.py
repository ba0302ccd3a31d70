"""Numbers that policies compare and tell: chances, counts of late shards."""

from __future__ import annotations

from dataclasses import replace
from math import inf

import pytest

from downpour.base.values import Forecast
from downpour.core.stragglers.base import POLICIES, Close, Speed, Waiting
from downpour.core.stragglers.outlook import Outlook, chance_above
from tests.core.stragglers.rounds import actions_of, round_of, running, sure


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
    policy = POLICIES["backup"]
    tasks = [running("ann", 0, 0.5)]
    told = policy.decide(round_of(tasks, published=[5.0, 5.0, 5.0]))
    reason = "3 of 4 updates are there; 1 not waited for"
    assert told == [Close(reason=reason, leave_running=True)]
    two = [*tasks, running("bob", 1, 0.5)]
    assert policy.decide(round_of(two, published=[5.0, 5.0])) == []


@pytest.mark.parametrize(("attempt", "taken"), [(0, True), (1, True), (2, False)])
def test_a_shard_that_is_late_everywhere_stays_in_the_end(attempt: int, *, taken: bool) -> None:
    """The option counts attempts, and an attempt's number begins at 0."""
    fast = [running(name, shard, 0.5) for shard, name in enumerate(("ann", "bob", "cid"))]
    late = running("dot", 3, 0.05, attempt=attempt)
    view = round_of([*fast, late], idle="eve", standbys=1, published=[10.0] * 4)
    assert bool(POLICIES["replace"].decide(view)) is taken
    crowded = round_of([*fast, late], idle="eve", pending=2, published=[10.0] * 4)
    assert ("Withdrawal 3 dot" in actions_of(POLICIES["mantri"], crowded)) is taken


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
    action = POLICIES[name].decide(replace(view, speeds={"dot": before}))[0]
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
