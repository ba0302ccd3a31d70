"""What sets each policy apart: who is late, and what becomes of it."""

from dataclasses import replace
from math import inf

import pytest

from downpour.base.values import Forecast
from downpour.core.spec_fields import Option
from downpour.core.stragglers import base
from tests.core.stragglers.rounds import FAST, LATE, actions_of, decide, round_of, running, sure

PACES = {**FAST, "dot": 25.0}


def test_drop_goes_on_without_the_slowest() -> None:
    """With k shards there, the round is over; with fewer it goes on."""
    enough = round_of([running("dot", 0, 0.1)], idle="ann", published=[9.0] * 9)
    reason = "9 of 10 updates are there; 1 dropped"
    assert decide("drop", enough) == [base.Close(reason=reason, leave_running=False)]
    few = round_of(LATE, published=[9.0] * 8)
    assert actions_of("drop", few) == []


@pytest.mark.parametrize(("k", "over"), [(0.5, True), (0.75, False), (2.0, True), (3.0, False)])
def test_k_is_a_share_or_a_number(k: float, *, over: bool) -> None:
    """Up to one it is a share of the shards."""
    view = round_of(LATE[:2], published=[9.0, 9.0], options={"k": k})
    assert bool(actions_of("drop", view)) is over


@pytest.mark.parametrize(("name", "options"), [("drop", {"k": 0.0}), ("backup", {"backups": 4})])
def test_a_round_needs_one_update(name: str, options: dict[str, Option]) -> None:
    """However few the options ask for."""
    assert actions_of(name, round_of(LATE[:2], options=options)) == []
    one = round_of(LATE[:2], published=[9.0], options=options)
    assert actions_of(name, one) == ["Close"]


def test_backup_lets_the_slowest_finish_unused() -> None:
    """The spec's shards are n + b; n are enough."""
    view = round_of(LATE[3:], idle="ann", published=[9.0] * 3)
    (close,) = decide("backup", view)
    assert isinstance(close, base.Close)
    assert close.leave_running


def test_the_blacklisted_get_nothing_while_there_are_others() -> None:
    """Only dot was slow, as the reasons say; alone, it gets the shard all the same."""
    history = {"ann": 1.0, "bob": 0.9, "dot": 2.0}
    view = round_of(idle="dot ann bob", pending=3, slowness=history)
    assert actions_of("blacklist", view) == ["Assignment 0 ann", "Assignment 1 bob"]
    usual = "next shard in order for the worker idle longest"
    reason = f"{usual}; left out for being slow: dot 2.0 times the median"
    assert decide("blacklist", view)[0].reason == reason
    assert decide("blacklist", replace(view, history={}))[0].reason == usual
    alone = round_of(idle="dot", pending=1, slowness=history)
    assert actions_of("blacklist", alone) == ["Assignment 0 dot"]


@pytest.mark.parametrize(
    ("rounds", "options", "first"),
    [(4, {}, "dot"), (5, {}, "ann"), (1, {"rounds": 1}, "ann"), (1, {"rounds": 0}, "ann")],
)
def test_a_few_slow_rounds_blacklist_nobody(
    rounds: int, options: dict[str, Option], first: str
) -> None:
    """Five of them do, if most were slow; the option asks for others, and at least for one."""
    history = {"dot": base.WorkerHistory(slowness=(1.0, 2.0, 1.0, 2.0, 2.0)[-rounds:])}
    view = replace(round_of(idle="dot ann bob", pending=1, options=options), history=history)
    assert actions_of("blacklist", view) == [f"Assignment 0 {first}"]


def test_not_all_workers_are_blacklisted() -> None:
    """A third of all may be left out, the slowest; of equally slow ones, the first by name."""
    history = {"ann": 3.0, "bob": 2.0, "cid": 4.0}
    view = round_of(idle="ann bob cid", pending=3, slowness=history)
    assert actions_of("blacklist", view) == ["Assignment 0 ann", "Assignment 1 bob"]
    alike = round_of(idle="cid bob ann", pending=3, slowness=dict.fromkeys(("cid", "ann"), 3.0))
    assert actions_of("blacklist", alike) == ["Assignment 0 cid", "Assignment 1 bob"]


def test_late_copies_the_last_task_within_its_cap() -> None:
    """One copy in ten workers, of what is slow and not too young."""
    view = round_of(LATE, idle="eve fay", paces=FAST)
    assert actions_of("late", view) == ["Assignment 3 eve"]
    young = round_of([running(t.worker, t.shard, t.done / 5, 1.0) for t in LATE], idle="eve")
    assert actions_of("late", young) == []


@pytest.mark.parametrize(("cap", "copies"), [({}, 1), ({"cap": 1.0}, 2), ({"cap": 0.2}, 1)])
def test_late_copies_the_slowest_quarter(cap: dict[str, Option], copies: int) -> None:
    """The latest first, each on a worker of its own, and none beside an earlier copy."""
    some = [running("cid", 2, 0.25), running("dot", 3, 0.2), running("ann", 0, 0.45)]
    view = round_of(some, idle="eve fay gus", published=[10.0] * 6, paces=FAST, options=cap)
    asked = ["Assignment 3 eve", "Assignment 2 fay"]
    assert actions_of("late", view) == asked[:copies]
    twice = [replace(some[0], copies=2), running("bob", 2, 0.3, copies=2)]
    view = round_of([*twice, *some[1:]], idle="eve fay gus", published=[10.0] * 6, options=cap)
    assert actions_of("late", view) == asked[: copies - 1]
    assert actions_of("late", round_of(some, idle="eve", pending=2)) == ["Assignment 4 eve"]


def test_late_copies_tasks_of_less_than_a_second() -> None:
    """Their updates count like those of long tasks."""
    view = round_of([running("dot", 3, 0.2, 0.5)], idle="eve", published=[0.5] * 6)
    assert actions_of("late", view) == ["Assignment 3 eve"]


def test_late_copies_nothing_where_all_are_alike() -> None:
    """One shard always ends last; that alone makes no straggler."""
    assert actions_of("late", round_of(LATE[:3], idle="eve", paces=FAST)) == []
    last = [running("cid", 2, 0.6, 15.0), running("dot", 3, 0.6, 15.0)]
    assert actions_of("late", round_of(last, idle="eve", published=[25.0] * 6)) == []


def test_late_asks_no_slow_worker_for_a_copy() -> None:
    """A copy on a slow worker would be late, too."""
    view = round_of(LATE, idle="fay", paces={"fay": 40.0})
    assert actions_of("late", view) == []


def test_clones_begin_with_their_shard_or_never() -> None:
    """Two shards, four workers: two of each at once, and none for what runs."""
    view = round_of(idle="ann bob cid dot", pending=2, begun=False, elapsed=0.0)
    assert actions_of("clone", view) == [
        "Assignment 0 ann",
        "Assignment 1 bob",
        "Assignment 0 cid",
        "Assignment 1 dot",
    ]
    assert actions_of("clone", round_of(LATE, idle="eve")) == []
    lone = round_of(idle="ann bob", pending=1, begun=False)
    assert actions_of("clone", lone) == ["Assignment 0 ann", "Assignment 0 bob"]
    many = round_of(idle="ann bob cid dot eve fay gus hal", pending=2, begun=False, elapsed=0.0)
    assert len(actions_of("clone", many)) == 4
    # Either of two shards may be late, so each is cloned more often than one alone.
    often = replace(many, options={"straggling": 0.2, "budget": 1.0})
    assert len(actions_of("clone", often)) == 6


def test_clones_keep_to_their_budget() -> None:
    """All are cloned, or none; and by default, clones occupy 70 % of the workers at most."""
    view = round_of(idle="ann bob cid dot", pending=2, options={"budget": 0.25})
    assert len(actions_of("clone", view)) == 2
    one_waits = round_of(idle="ann bob cid dot", pending=3, standbys=2)
    assert len(actions_of("clone", one_waits)) == 2
    slow = round_of(idle="ann bob cid dot", pending=1, options={"straggling": 0.5})
    assert len(actions_of("clone", slow)) == 3
    many = " ".join(f"w{number}" for number in range(40))
    nearly_all = round_of(idle=many, pending=1, options={"straggling": 0.99})
    assert len(actions_of("clone", nearly_all)) == 16


@pytest.mark.parametrize("name", ["straggling", "risk"])
def test_nothing_is_cloned_where_chances_are_extreme(name: str) -> None:
    """Never or always are no chances from which a number of copies follows."""
    for chance in (0.0, 1.0):
        view = round_of(idle="ann bob cid dot", pending=2, options={name: chance})
        assert len(actions_of("clone", view)) == 2


def test_grass_saves_resources_first_and_is_greedy_in_the_end() -> None:
    """A copy of 10 s beside 15 s left costs more than it saves; beside 24 s, one copy saves."""
    slow = [running("dot", 0, 0.25)]
    early = round_of(slow, idle="eve", published=[10.0], paces=PACES)
    assert actions_of("grass", early) == []
    later = round_of([running("dot", 0, 0.17)], idle="eve", published=[10.0], paces=PACES)
    assert actions_of("grass", later) == ["Assignment 0 eve"]
    near = round_of(slow, idle="eve", published=[10.0] * 4, paces=PACES)
    assert actions_of("grass", near) == ["Assignment 0 eve"]
    two = round_of([*slow, running("cid", 1, 0.1)], idle="eve", published=[10.0] * 8, paces=PACES)
    assert actions_of("grass", two) == ["Assignment 1 eve"]


def test_mantri_duplicates_a_task_that_takes_twice_as_long() -> None:
    """With 20 s left and 10 s anew a duplicate just does not pay; with 45 s it does."""
    view = round_of([*LATE[:3], running("dot", 3, 0.2)], idle="eve", paces=PACES)
    assert actions_of("mantri", view) == []
    view = round_of([*LATE[:3], running("dot", 3, 0.1)], idle="eve", paces=FAST)
    assert actions_of("mantri", view) == ["Assignment 3 eve"]
    # 25 s left are enough beside 10 s anew, but a third copy would need more.
    view = round_of([*LATE[:3], running("dot", 3, 1 / 6)], idle="eve", paces=FAST)
    assert actions_of("mantri", view) == ["Assignment 3 eve"]


@pytest.mark.parametrize("name", ["grass", "mantri"])
def test_a_shard_has_three_attempts_at_most(name: str) -> None:
    """However slow they are: it may be slow everywhere."""
    for copies, more in ((2, ["Assignment 3 eve"]), (3, [])):
        slow = running("dot", 3, 0.05, copies=copies)
        view = round_of([*LATE[:3], slow], idle="eve", paces=FAST)
        assert actions_of(name, view) == more


@pytest.mark.parametrize(("ago", "duplicated"), [(0.0, True), (15.0, False)])
def test_mantri_duplicates_what_a_forecast_gives_a_fair_chance(
    ago: float, *, duplicated: bool
) -> None:
    """A quarter is enough, so less than twice the time may be expected; it counts from a report."""
    ahead = Forecast(q10=5.0, q50=18.0, q90=40.0, q98=60.0)
    late = replace(running("dot", 3, 0.2, 20.0), remaining=ahead, reported_seconds=ago)
    view = round_of([*LATE[:3], late], idle="eve", paces=FAST)
    assert bool(actions_of("mantri", view)) is duplicated


def test_mantri_restarts_where_shards_wait_anyway() -> None:
    """No worker is spare for duplicates, as one on standby is not: the slow attempt is ended."""
    slow = [*LATE[:3], running("dot", 3, 0.1)]
    view = round_of(slow, idle="eve", pending=3, paces=FAST)
    assert actions_of("mantri", view) == ["Withdrawal 3 dot", "Assignment 3 eve"]
    # 25 s left are enough beside 10 s anew.
    sooner = [*LATE[:3], running("dot", 3, 1 / 6)]
    view = round_of(sooner, idle="eve", pending=3, paces=FAST)
    assert actions_of("mantri", view) == ["Withdrawal 3 dot", "Assignment 3 eve"]
    # 12 s are not: a restart must save half of the time that it takes.
    near = round_of([*LATE[:3], running("dot", 3, 0.3)], idle="eve", pending=3, paces=FAST)
    assert actions_of("mantri", near) == ["Assignment 4 eve"]
    two = round_of(slow, idle="eve fay", pending=2, standbys=1, paces=FAST)
    assert actions_of("mantri", two) == ["Withdrawal 3 dot", "Assignment 3 eve"]
    one = round_of(slow, idle="eve", pending=1, paces=FAST)
    assert actions_of("mantri", one) == ["Assignment 4 eve"]


@pytest.mark.parametrize(
    ("name", "ahead", "pending", "published"),
    [
        ("grass", 20.0, 0, 1),
        ("grass", 10.0, 0, 4),
        ("mantri", Forecast(q10=5.0, q50=10.0, q90=26.0, q98=30.0), 0, 1),
        ("mantri", 15.0, 2, 1),
    ],
    ids=["two attempts take as long", "ends together", "a quarter", "half more"],
)
def test_a_shard_stays_where_a_new_attempt_gains_just_nothing(
    name: str, ahead: float | Forecast, pending: int, published: int
) -> None:
    """Eve takes 10 s; the attempt that runs has exactly as much left as a rule allows."""
    left = ahead if isinstance(ahead, Forecast) else sure(ahead)
    for later, moved in ((0.0, False), (0.1, True)):
        longer = replace(left, **{q: getattr(left, q) + later for q in ("q50", "q90", "q98")})
        view = round_of(
            [replace(running("dot", 0, 0.5), remaining=longer)],
            idle="eve",
            pending=pending,
            published=[10.0] * published,
            paces=PACES,
        )
        assert ("Assignment 0 eve" in actions_of(name, view)) is moved


def test_a_snapshot_makes_copies_and_restarts_pay() -> None:
    """Another worker goes on from it, so less is to be done there."""
    for name, done, pending, action in (
        ("grass", 0.25, 0, "Assignment 3 eve"),
        ("mantri", 0.2, 0, "Assignment 3 eve"),
        ("mantri", 0.3, 3, "Withdrawal 3 dot"),
    ):
        for saved in (0.0, 0.3):
            tasks = [*LATE[:3], replace(running("dot", 3, done), saved=saved)]
            view = round_of(tasks, idle="eve", pending=pending, paces=PACES if done < 0.3 else FAST)
            assert (action in actions_of(name, view)) is (saved > 0)


def test_mantri_stops_a_useless_copy() -> None:
    """The copy overtook the one that it was made of."""
    pair = [running("dot", 0, 0.2, 20.0, copies=2), running("eve", 0, 0.8, 8.0, copies=2)]
    assert actions_of("mantri", round_of(pair, paces=FAST)) == ["Withdrawal 0 dot"]
    for done, stopped in ((0.6, ["Withdrawal 0 dot"]), (0.65, [])):  # 12.6 or 10.3 s left, and 7.7
        near = [running("dot", 0, done, 20.0, copies=2), running("eve", 0, 0.6, 12.0, copies=2)]
        assert actions_of("mantri", round_of(near, paces=FAST)) == stopped
    ends = [
        replace(running(worker, 0, 0.5, copies=2), remaining=sure(seconds))
        for worker, seconds in (("dot", 15.0), ("eve", 10.0))
    ]
    assert actions_of("mantri", round_of(ends, paces=FAST)) == []
    young = [running("dot", 0, 0.8, 20.0, copies=2), running("eve", 0, 0.0, 0.1, copies=2)]
    assert actions_of("mantri", round_of(young, paces=FAST)) == []


def test_wrangler_defers_a_likely_straggler_for_a_while() -> None:
    """It is used after a quarter of a usual shard's time, or where no other worker is."""
    running_now = LATE[:3]
    view = round_of(running_now, idle="dot", pending=1, paces=PACES, elapsed=1.0)
    assert actions_of("wrangler", view) == []
    assert actions_of("wrangler", replace(view, elapsed_seconds=2.5)) == []
    later = round_of(running_now, idle="dot", pending=1, paces=PACES, elapsed=3.0)
    assert actions_of("wrangler", later) == ["Assignment 3 dot"]
    endless = tuple(replace(task, remaining=sure(inf)) for task in running_now)
    no_usual_time = replace(view, running=endless, elapsed_seconds=0.1)
    assert actions_of("wrangler", no_usual_time) == ["Assignment 3 dot"]
    just = {"slowness": 1.0, "confidence": 0.5}
    usual = round_of(running_now, idle="eve", pending=1, paces=FAST, elapsed=1.0, options=just)
    assert actions_of("wrangler", usual) == ["Assignment 3 eve"]
    alone = round_of(idle="dot", pending=1, paces=PACES, elapsed=0.0)
    assert actions_of("wrangler", alone) == ["Assignment 0 dot"]
    two = round_of(running_now, idle="dot", pending=1, paces={"ann": 10.0, "dot": 40.0}, elapsed=1)
    assert actions_of("wrangler", two) == []
    other = round_of(running_now, idle="dot eve", pending=1, paces=PACES, elapsed=1.0)
    (choice,) = decide("wrangler", other)
    assert choice.reason.endswith("; deferred: dot straggles at 100%")


@pytest.mark.parametrize(
    ("paces", "sizes", "order"),
    [
        ({"ann": 20.0, "bob": 10.0, "cid": 20.0}, (150, 75, 75), ["bob", "ann", "cid"]),
        ({"ann": 20.0, "bob": 10.0}, (138, 92, 70), ["bob", "cid", "ann"]),
        ({"ann": 1e3, "bob": 10.0, "cid": 10.0}, (133, 133, 34), ["bob", "cid", "ann"]),
    ],
)
def test_rebalance_cuts_by_speed_and_gives_the_biggest_to_the_fastest(
    paces: dict[str, float], sizes: tuple[int, ...], order: list[str]
) -> None:
    """Twice as fast, twice as much; nothing is lost in rounding.

    Without a forecast, a worker counts as the median one; none is slower than a quarter of that.
    """
    view = round_of(idle="ann bob cid", pending=3, paces=paces, begun=False)
    resize, *rest = decide("rebalance", view)
    assert isinstance(resize, base.Resize)
    assert resize.samples == sizes
    assigned = [(one.shard, one.worker) for one in rest if isinstance(one, base.Assignment)]
    assert assigned == list(enumerate(order))


def test_rebalance_leaves_begun_and_even_tasks_alone() -> None:
    """Nothing to gain, too late, or no whole round to cut into shards with samples."""
    even = round_of(idle="ann bob", pending=2, paces=FAST, begun=False)
    assert actions_of("rebalance", even) == ["Assignment 0 ann", "Assignment 1 bob"]
    begun = round_of(idle="ann dot", pending=2, paces=PACES)
    assert actions_of("rebalance", begun) == ["Assignment 0 ann", "Assignment 1 dot"]
    part = replace(begun, begun=False, shards=3)
    empty = tuple(replace(task, samples=0) for task in begun.pending)
    uneven = (replace(begun.pending[0], samples=300), begun.pending[1])
    nearly = {"ann": 10.0, "dot": 10.4}
    for view in (
        part,
        replace(begun, begun=False, pending=empty),
        replace(begun, begun=False, pending=uneven, paces={}),
        replace(begun, begun=False, options={"bound": 0.0}),
        replace(begun, begun=False, idle=("ann", "dot", "gus"), standbys=2),
        round_of(idle="ann dot", pending=2, paces=nearly, begun=False),
    ):
        assert not any(isinstance(one, base.Resize) for one in decide("rebalance", view))


def dylu_shares(view: base.RoundView) -> list[float]:
    """Return how much of a task each new assignment is to train."""
    actions = decide("dylu", view)
    return [action.share for action in actions if isinstance(action, base.Assignment)]


def test_dylu_gives_a_slow_worker_fewer_steps() -> None:
    """By the forecast speed over the 90th percentile; whoever is faster trains all, too."""
    paces = {"ann": 10.0, "bob": 10.0, "cid": 40.0, "dot": 1000.0}
    view = round_of(idle="ann bob cid dot", pending=4, paces=paces, begun=False, elapsed=0.0)
    assert dylu_shares(view) == [1.0, 1.0, 0.25, 0.1]
    whole, _, part, _ = decide("dylu", view)
    assert whole.reason == "next shard in order for the worker idle longest"
    assert part.reason == f"{whole.reason}; 25% of its steps, by its speed"
    without_least = replace(view, options={"least": 0.0})
    assert dylu_shares(replace(without_least, paces={**view.paces, "dot": sure(1e6)}))[3] == 0.001


def test_dylu_goes_by_measurements_without_forecasts() -> None:
    """And asks for all steps where nothing is known of a worker."""
    view = round_of(idle="ann bob cid", pending=3)
    speeds = {
        "ann": base.Speed(samples_per_second=20.0, share=1.0),
        "bob": base.Speed(samples_per_second=5.0, share=1.0),
    }
    whole, part, _ = dylu_shares(replace(view, speeds=speeds))
    assert whole == 1.0
    assert part == pytest.approx(5 / 18.5, abs=1e-3)
    assert dylu_shares(view) == [1.0, 1.0, 1.0]


def test_replace_lets_the_forecast_straggler_stand_by() -> None:
    """Dot waited longest, and is passed over all the same, unless no other worker is left."""
    view = round_of(idle="dot ann bob", pending=2, paces=PACES, standbys=1, begun=False)
    assert actions_of("replace", view) == ["Assignment 0 ann", "Assignment 1 bob"]
    none = round_of(idle="dot ann", pending=2, paces=PACES, begun=False)
    *begun, asked = decide("replace", none)
    assert [getattr(choice, "worker", "") for choice in begun] == ["ann", "dot"]
    assert asked == base.WorkerRequest(reason="no standby for dot, forecast 2.5 times the median")


def test_replace_begins_the_whole_shard_anew_elsewhere() -> None:
    """Dot has 20 s left, eve takes 10 s for all of it; then dot stands by."""
    view = round_of(LATE, idle="eve", paces=FAST, standbys=1)
    assert actions_of("replace", view) == ["Withdrawal 3 dot", "Assignment 3 eve"]


def test_replace_begins_nothing_anew_while_shards_wait() -> None:
    """They need the worker more than a late one does."""
    view = round_of(LATE, idle="eve", pending=2, paces=FAST)
    assert actions_of("replace", view) == ["Assignment 4 eve"]


def test_replace_gives_a_standby_one_shard_and_asks_for_another_worker() -> None:
    """The latest shard comes first."""
    late = [running("cid", 2, 0.2), running("dot", 3, 0.1)]
    view = round_of(late, idle="eve", published=[10.0] * 3, paces=FAST, standbys=1)
    actions = ["Withdrawal 3 dot", "Assignment 3 eve", "WorkerRequest"]
    assert actions_of("replace", view) == actions


def test_replace_asks_for_one_worker_where_none_stands_by() -> None:
    """Not for another one while that has not come."""
    view = round_of(LATE, paces=FAST)
    (asked,) = decide("replace", view)
    assert asked == base.WorkerRequest(reason="no standby: dot forecast 22.6 s, median 10.0 s")
    assert actions_of("replace", round_of(LATE, paces=FAST, requested=1)) == []
