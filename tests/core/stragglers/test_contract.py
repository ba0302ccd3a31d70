"""What every straggler policy must keep to, at any moment of any round.

The views are drawn so that a scheduler could make them: a shard is pending, running or published, a
worker is idle or trains one shard, and what is known of a worker may be missing or nonsense.
"""

import re
from collections.abc import Callable
from dataclasses import replace
from math import isfinite

import pytest
from hypothesis import given, note
from hypothesis import strategies as st

from downpour.base.values import Forecast
from downpour.core.stragglers import base
from downpour.core.stragglers.outlook import Outlook
from tests.core.stragglers.rounds import actions_of, decide, round_of, seen_by

NAMES = ("ann", "bob", "cid", "dot", "eve", "fay")
SECONDS = st.sampled_from((0.0, 0.01, 1.0, 4.0, 30.0))
SPEEDS = st.builds(
    base.Speed,
    samples_per_second=SECONDS,
    share=st.sampled_from((0.0, 0.04, 0.5)),
    variance=st.sampled_from((None, 0.0, 0.05, 4.0)),
    at_most=st.booleans(),
)
SHARES = st.sampled_from((0.0, 0.1, 0.25, 0.5, 0.99, 1.0))


@st.composite
def forecasts(draw: st.DrawFn) -> Forecast:
    """Draw a forecast, which may be of no time at all."""
    q50 = draw(st.sampled_from((0.0, 0.1, 1.0, 10.0)))
    spread = draw(st.sampled_from((1.0, 1.2, 3.0)))
    return Forecast(q10=q50 / spread, q50=q50, q90=q50 * spread, q98=q50 * spread * spread)


@st.composite
def running(
    draw: st.DrawFn, shard: int, samples: int, holders: list[str]
) -> list[base.RunningTask]:
    """Draw the attempts at a shard, one for each of its holders."""
    began, done = sorted((draw(SHARES), draw(SHARES)))
    return [
        base.RunningTask(
            shard=shard,
            samples=samples,
            worker=worker,
            elapsed_seconds=draw(SECONDS),
            began_at=began,
            done=done,
            reported_seconds=draw(SECONDS),
            remaining=draw(st.none() | forecasts()),
            saved=draw(SHARES),
            copies=len(holders),
            still_seconds=draw(SECONDS),
            meant_for=draw(st.none() | st.sampled_from([n for n in NAMES if n != worker])),
            leaving_seconds=draw(SECONDS),
            is_starting=draw(st.booleans()),
        )
        for worker in holders
    ]


@st.composite
def views(draw: st.DrawFn) -> base.RoundView:
    """Draw a moment of a round."""
    workers = draw(st.lists(st.sampled_from(NAMES), unique=True))
    known = st.sets(st.sampled_from(NAMES))
    sizes = draw(st.lists(st.sampled_from((1, 10, 400)), max_size=6))
    free = list(workers)
    pending: list[base.PendingTask] = []
    published: list[tuple[int, float]] = []
    tasks: list[base.RunningTask] = []
    for shard, samples in enumerate(sizes):
        holders = free[: draw(st.sampled_from((0, 1, 1, 2)))]
        if holders:
            del free[: len(holders)]
            tasks += draw(running(shard, samples, holders))
        elif draw(st.booleans()):
            published.append((samples, draw(SECONDS)))
        else:
            pending.append(
                base.PendingTask(
                    shard=shard,
                    samples=samples,
                    failed_on=draw(st.lists(st.sampled_from(NAMES), max_size=3).map(tuple)),
                    meant_for=draw(st.none() | st.sampled_from(NAMES)),
                    saved=draw(SHARES),
                    home=draw(st.none() | st.sampled_from(NAMES)),
                )
            )
    return base.RoundView(
        round=1,
        at_seconds=100.0,
        pending=tuple(pending),
        idle=tuple(draw(st.permutations(free))),
        workers=tuple(workers),
        shards=len(sizes),
        begun=len(pending) < len(sizes) or draw(st.booleans()),
        running=tuple(tasks),
        published=base.UpdateTimes(published),
        paces={name: draw(forecasts()) for name in sorted(draw(known))},
        history={
            name: base.WorkerHistory(slowness=(draw(SECONDS),) * 8) for name in sorted(draw(known))
        },
        standbys=draw(st.integers(0, 2)),
        speeds={name: draw(SPEEDS) for name in sorted(draw(known))},
        elapsed_seconds=draw(SECONDS),
        requested=draw(st.integers(0, 1)),
        barred=draw(st.dictionaries(st.integers(0, 5), st.frozensets(st.sampled_from(NAMES)))),
    )


def at_any_moment(check: Callable[[base.Policy, base.RoundView], None]) -> Callable[[], None]:
    """Make a test of all policies together: to draw a moment costs more than to decide."""

    @given(view=views())
    def test(view: base.RoundView) -> None:
        for name, policy in base.POLICIES.items():
            note(name)  # of a failure's notes, the last is the policy's that failed
            check(policy, seen_by(name, view))

    test.__doc__ = check.__doc__
    return test


@at_any_moment
def test_a_policy_asks_for_possible_actions(policy: base.Policy, view: base.RoundView) -> None:
    """Actions name what is there, and come in an order in which each is possible."""
    idle, held = set(view.idle), {(task.shard, task.worker) for task in view.running}
    open_shards = {offer.shard for offer in view.pending} | {task.shard for task in view.running}
    for action in policy.decide(view):
        if isinstance(action, base.Assignment):
            assert action.shard in open_shards
            assert action.worker in idle
            assert view.may_train(action.worker, action.shard)
            idle.remove(action.worker)
        elif isinstance(action, base.Withdrawal):
            assert (action.shard, action.worker) in held
            held.remove((action.shard, action.worker))
        elif isinstance(action, base.Handoff):
            assert (action.shard, action.worker) in held
            assert action.meant_for in set(view.workers) - {action.worker}
            assert view.may_train(action.meant_for, action.shard)
        elif isinstance(action, base.Close):
            assert 0 < len(view.published) < view.shards
        elif isinstance(action, base.Resize):
            assert not view.begun
            assert sum(action.samples) == sum(task.samples for task in view.pending)
            assert len(action.samples) == view.shards
            assert min(action.samples) > 0
        elif isinstance(action, base.Waiting):
            assert (action.shard, action.worker) in held
        else:
            assert isinstance(action, base.WorkerRequest)


@at_any_moment
def test_a_worker_takes_part_in_one_move_at_most(policy: base.Policy, view: base.RoundView) -> None:
    """No worker hands over a shard twice, or gets two shards at once."""
    moves = [action for action in policy.decide(view) if isinstance(action, base.Handoff)]
    assignments = [action for action in policy.decide(view) if isinstance(action, base.Assignment)]
    takers = [move.meant_for for move in moves] + [choice.worker for choice in assignments]
    assert len(takers) == len(set(takers))
    givers = [move.worker for move in moves]
    assert len(givers) == len(set(givers))
    exchanged = {(move.worker, move.meant_for) for move in moves}
    for move in moves:
        busy = move.meant_for not in view.idle
        assert not busy or (move.meant_for, move.worker) in exchanged


@at_any_moment
def test_a_task_that_ends_sooner_than_it_moves_stays(
    policy: base.Policy, view: base.RoundView
) -> None:
    """No shard is moved or copied that ends before it could go on elsewhere, or that is starting.

    A worker that makes no step may not end what it has, whatever is expected of it.
    """
    outlook = Outlook(view)
    movable: dict[int, bool] = {}
    for task in view.running:
        left = outlook.left_seconds(task)
        silent = max(task.still_seconds, task.leaving_seconds) > 0 and not task.is_starting
        pays = left is not None and left > outlook.move_seconds
        stalls = policy is base.POLICIES["handoff"] and silent
        movable[task.shard] = movable.get(task.shard, False) or pays or stalls
    for action in policy.decide(view):
        if isinstance(action, base.Handoff | base.Assignment):
            assert movable.get(action.shard, True), action


@at_any_moment
def test_a_policy_lets_something_happen(policy: base.Policy, view: base.RoundView) -> None:
    """If all workers are idle and one may train a pending shard, a worker gets a shard."""
    all_idle = bool(view.idle) and len(view.idle) == len(view.workers)
    steps = (base.Assignment, base.Close)
    happens = any(isinstance(action, steps) for action in policy.decide(view))
    possible = any(view.first_fit(task.shard, view.idle) for task in view.pending)
    assert happens or not all_idle or not possible


@at_any_moment
def test_a_policy_is_pure_and_gives_its_reasons(policy: base.Policy, view: base.RoundView) -> None:
    """The same moment gives the same answer; every action says why, in one line of numbers."""
    actions = policy.decide(view)
    assert policy.decide(view) == actions
    for action in actions:
        assert action.reason
        assert "\n" not in action.reason
        assert not {"nan", "inf"} & set(action.reason.replace(",", " ").split())


@st.composite
def late_shards(draw: st.DrawFn) -> base.RoundView:
    """Draw a round in which every shard is late, and no move would gain enough."""
    holders = NAMES[: draw(st.integers(1, 3))]
    tasks = [
        task for shard, name in enumerate(holders) for task in draw(running(shard, 10, [name]))
    ]
    return replace(
        draw(views()),
        pending=(),
        idle=("fay",),
        workers=(*holders, "fay"),
        shards=len(tasks) + 1,
        running=tuple(replace(task, meant_for=None, is_starting=False) for task in tasks),
        published=base.UpdateTimes([(10, 1.0)]),
        barred={},
        options={"late": 0.0, "settle": 0.0, "gain": 1e6, "stalled_seconds": 1e6},
    )


@given(view=late_shards())
def test_a_number_lies_in_the_interval_beside_it(view: base.RoundView) -> None:
    """Users who read "1.7 s (1.9–2.0)" believe neither."""
    for policy in base.POLICIES:
        for action in decide(policy, view):
            intervals = re.findall(r"([\d.]+) s \(([\d.]+)–([\d.]+)\)", action.reason)
            assert len(intervals) == action.reason.count("–")
            for value, low, high in intervals:
                assert float(low) <= float(value) <= float(high), action.reason


def test_policies_declare_what_they_do_to_a_round() -> None:
    """Users read in it which policies change the model, or need snapshots."""
    declared = {
        field: {name for name, policy in base.POLICIES.items() if getattr(policy, field)}
        for field in ("preserves_bytes", "cuts_rounds", "shortens", "hands_over")
    }
    assert base.POLICIES.keys() - declared["preserves_bytes"] == {
        "drop",
        "backup",
        "rebalance",
        "dylu",
    }
    assert declared["cuts_rounds"] == {"rebalance"}
    assert declared["shortens"] == {"dylu"}
    assert declared["hands_over"] == {"handoff"}


@pytest.mark.parametrize("policy", base.POLICIES)
def test_shards_begin_although_forecasts_say_nothing(policy: str) -> None:
    """A pace of 0 compares with no other."""
    view = round_of(idle="ann bob", pending=2, paces={"ann": 0.0, "bob": 0.0}, begun=False)
    assert actions_of(policy, view) == ["Assignment 0 ann", "Assignment 1 bob"]


@at_any_moment
def test_a_policy_that_preserves_bytes_counts_every_shard(
    policy: base.Policy, view: base.RoundView
) -> None:
    """It neither closes a round early, nor cuts it anew, nor leaves out steps of a task."""
    actions = policy.decide(view)
    shares = [action.share for action in actions if isinstance(action, base.Assignment)]
    assert all(0 < share <= 1 for share in shares)
    shortens = any(share < 1 for share in shares)
    changes = shortens or any(isinstance(action, base.Close | base.Resize) for action in actions)
    assert not (changes and policy.preserves_bytes)
    assert policy.shortens or not shortens
    assert policy.cuts_rounds or not any(isinstance(action, base.Resize) for action in actions)


@at_any_moment
def test_between_two_looks_whole_shards_are_assigned_and_nothing_else(
    policy: base.Policy, view: base.RoundView
) -> None:
    """Each to an idle worker that gets no other."""
    actions = policy.between(view) if policy.between is not None else []
    assigned = [action for action in actions if isinstance(action, base.Assignment)]
    workers = [action.worker for action in assigned]
    assert len(assigned) == len(actions)
    assert len(set(workers)) == len(workers)
    assert set(workers) <= set(view.idle)
    assert all(action.share == 1 for action in assigned)


def test_every_default_is_a_finite_number() -> None:
    """Options are shares, counts and factors; only policies that watch see them."""
    for policy in base.POLICIES.values():
        assert policy.watches or not policy.options
        for value in policy.options.values():
            assert isinstance(value, int | float)
            assert isfinite(value)
            assert value >= 0
