"""What every straggler policy must keep to, and what sets each apart."""

from __future__ import annotations

from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from downpour.spec import Spec
from downpour.stragglers import POLICIES, PendingTask, Policy, RoundView
from downpour.stragglers.wait import wait

NAMES = ("ann", "bob", "cid", "dot")


@st.composite
def views(draw: st.DrawFn) -> RoundView:
    """Draw a moment of a round."""
    workers = draw(st.lists(st.sampled_from(NAMES), unique=True))
    idle = [name for name in draw(st.permutations(workers)) if draw(st.booleans())]
    shards = sorted(draw(st.sets(st.integers(0, 9), max_size=5)))
    tried = st.lists(st.sampled_from(NAMES), max_size=3).map(tuple)
    return RoundView(
        round=0,
        at_seconds=0.0,
        pending=tuple(PendingTask(shard=s, samples=10, failed_on=draw(tried)) for s in shards),
        idle=tuple(idle),
        workers=tuple(workers),
    )


def look(pending: list[PendingTask], idle: str, workers: str = "") -> RoundView:
    """Make a view; workers are named in one string."""
    everybody = tuple(f"{idle} {workers}".split())
    return RoundView(
        round=0,
        at_seconds=0.0,
        pending=tuple(pending),
        idle=tuple(idle.split()),
        workers=everybody,
    )


def task(shard: int, *failed_on: str) -> PendingTask:
    """Make a pending task."""
    return PendingTask(shard=shard, samples=10, failed_on=failed_on)


def pairs(view: RoundView) -> list[tuple[int, str]]:
    """Return who gets what under `wait`."""
    return [(choice.shard, choice.worker) for choice in wait(view)]


def test_the_spec_names_the_policies() -> None:
    """What a spec accepts is what the registry holds."""
    assert set(get_args(Spec.model_fields["policy"].annotation)) == set(POLICIES)


@pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES)
@given(view=views())
def test_a_policy_asks_for_what_can_be(policy: Policy, view: RoundView) -> None:
    """Pending shards to idle workers, each at most once, with a reason of one line; and purely."""
    choices = policy(view)
    shards = [choice.shard for choice in choices]
    workers = [choice.worker for choice in choices]
    assert len(set(shards)) == len(shards)
    assert set(shards) <= {offer.shard for offer in view.pending}
    assert len(set(workers)) == len(workers)
    assert set(workers) <= set(view.idle)
    assert all(choice.reason and "\n" not in choice.reason for choice in choices)
    assert policy(view) == choices


@pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES)
@given(view=views())
def test_a_policy_lets_something_happen(policy: Policy, view: RoundView) -> None:
    """Where everybody is idle and something is pending, somebody is given something."""
    everybody_idle = bool(view.idle) and set(view.idle) == set(view.workers)
    assert policy(view) or not everybody_idle or not view.pending


def test_shards_go_in_order_to_whoever_has_waited_longest() -> None:
    """Without failures, the lowest shard goes to the first in the queue."""
    assert pairs(look([task(0), task(1), task(2)], "bob ann")) == [(0, "bob"), (1, "ann")]


def test_a_failed_shard_goes_elsewhere_and_first() -> None:
    """It is late already, and must not be left with the worker it failed on."""
    view = look([task(0), task(1, "bob")], "ann bob")
    assert pairs(view) == [(1, "ann"), (0, "bob")]
    assert wait(view)[0].reason == "tried again elsewhere: failed on bob"


def test_a_failed_shard_waits_for_somebody_busy() -> None:
    """While another worker might fare better, the one it failed on gets other shards."""
    assert pairs(look([task(0, "ann"), task(1)], "ann", workers="bob")) == [(1, "ann")]


def test_a_shard_that_failed_on_everybody_is_tried_again() -> None:
    """Nobody is left to wait for."""
    view = look([task(0, "ann", "gone", "ann")], "ann")
    assert pairs(view) == [(0, "ann")]
    assert (
        wait(view)[0].reason == "tried again, although it failed on everybody here (on ann, gone)"
    )
