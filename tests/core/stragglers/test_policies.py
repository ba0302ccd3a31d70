"""Which worker gets which pending shard: the pairing that every policy begins with."""

from dataclasses import replace

import pytest

from downpour.base.errors import SpecError
from downpour.core.spec import Spec
from downpour.core.stragglers.base import (
    POLICIES,
    ROUNDS_REMEMBERED,
    PendingTask,
    Policy,
    RoundView,
    check_policy,
)
from downpour.core.stragglers.pairing import pair
from tests.core.stragglers.rounds import running


def look(pending: list[PendingTask], idle: str, workers: str = "") -> RoundView:
    """Make a view; workers are named in one string."""
    present = tuple(f"{idle} {workers}".split())
    return RoundView(
        round=0, at_seconds=0.0, pending=tuple(pending), idle=tuple(idle.split()), workers=present
    )


def task(shard: int, *failed_on: str) -> PendingTask:
    """Make a pending task."""
    return PendingTask(shard=shard, samples=10, failed_on=failed_on)


def pairs(view: RoundView) -> list[tuple[int, str]]:
    """Return who gets what."""
    return [(choice.shard, choice.worker) for choice in pair(view)]


def test_shards_go_in_order_to_the_worker_idle_longest() -> None:
    """Without failures, the lowest shard goes to the first in the queue."""
    assert pairs(look([task(0), task(1), task(2)], "bob ann")) == [(0, "bob"), (1, "ann")]


def at_home(shard: int, home: str | None, samples: int = 10) -> PendingTask:
    """Make a pending task that a worker trained last."""
    return PendingTask(shard=shard, samples=samples, home=home)


def test_a_shard_goes_home_and_the_others_go_in_order() -> None:
    """Its home may still hold its examples; one at a time, and never a busy or absent worker."""
    tasks = [at_home(0, "ann"), at_home(1, "bob"), at_home(2, "gone"), at_home(3, "ann")]
    view = look(tasks, "cid bob ann", workers="dot")
    assert pairs(view) == [(0, "ann"), (1, "bob"), (2, "cid")]
    reasons = [choice.reason for choice in pair(view)]
    assert reasons[1] == "its shard of the round before"
    assert reasons[2] == "next shard in order for the worker idle longest"
    failed = replace(tasks[1], failed_on=("bob",))
    assert pairs(look([failed, tasks[0]], "bob ann")) == [(1, "ann"), (0, "bob")]
    taken = look([at_home(0, "bob"), task(1, "cid")], "bob ann", workers="cid")
    assert pairs(taken) == [(1, "bob"), (0, "ann")]


def test_the_best_workers_train_and_the_largest_shards_go_to_them() -> None:
    """A policy's order of workers and of sizes counts more than where a shard was."""
    alike = look([at_home(0, "bob"), at_home(1, "cid")], "ann bob cid")
    order = ["ann", "bob", "cid"]
    assert [(c.shard, c.worker) for c in pair(alike, order)] == [(0, "bob"), (1, "ann")]
    unequal = look([at_home(0, "bob", 20), at_home(1, "ann", 10)], "ann bob")
    assert [(c.shard, c.worker) for c in pair(unequal, order[:2])] == [(0, "ann"), (1, "bob")]
    assert pairs(unequal) == [(0, "bob"), (1, "ann")]
    standing_by = replace(alike, standbys=2)
    assert [(c.shard, c.worker) for c in pair(standing_by, order)] == [(0, "ann")]


def test_a_failed_shard_goes_elsewhere_and_first() -> None:
    """It is late already, and must not be left with the worker it failed on."""
    view = look([task(0), task(1, "bob")], "ann bob")
    assert pairs(view) == [(1, "ann"), (0, "bob")]
    assert pair(view)[0].reason == "tried again elsewhere: failed on bob"


def test_a_failed_shard_waits_for_a_busy_worker() -> None:
    """While another worker might fare better, the one it failed on gets other shards."""
    assert pairs(look([task(0, "ann"), task(1)], "ann", workers="bob")) == [(1, "ann")]


def test_a_shard_that_failed_on_all_workers_is_tried_again() -> None:
    """No other worker is left to wait for."""
    view = look([task(0, "ann", "gone", "ann")], "ann")
    assert pairs(view) == [(0, "ann")]
    assert pair(view)[0].reason == "tried again, although it failed on all workers here (ann, gone)"


def test_a_worker_that_is_back_after_it_was_lost_gets_the_shard_if_no_other_is_idle() -> None:
    """It is most often another process of that name, and the other workers may be busy for long."""
    lost = PendingTask(shard=0, samples=10, failed_on=("ann",), lost_on=frozenset({"ann"}))
    assert pairs(look([lost], "ann bob")) == [(0, "bob")]
    view = look([lost], "ann", workers="bob")
    assert pairs(view) == [(0, "ann")]
    assert pair(view)[0].reason == "tried again on ann, which is back after it was lost"


def test_a_worker_is_kept_free_for_a_shard_that_is_being_handed_over() -> None:
    """It takes no other one meanwhile, although it has been idle longest."""
    leaving = running("cid", 1, 0.5, meant_for="ann")
    view = look([task(0), task(2)], "ann bob", workers="cid")
    assert pairs(replace(view, running=(leaving,))) == [(0, "bob")]


def test_a_worker_goes_on_with_one_shard_at_a_time() -> None:
    """Two shards may be meant for the same worker; it gets the first, the other one waits."""
    meant = [PendingTask(shard=shard, samples=10, meant_for="ann", saved=0.5) for shard in (0, 1)]
    assert pairs(look(meant, "ann", workers="bob")) == [(0, "ann")]
    # It comes first: other shards may be more than there are idle workers.
    assert pairs(look([task(2), task(3), meant[0]], "bob ann")) == [(0, "ann"), (2, "bob")]
    # One that is back with other labels does not go on with it.
    unfit = replace(look([task(2), meant[0]], "ann"), barred={0: frozenset({"ann"})})
    assert pairs(unfit) == [(2, "ann")]


SOME = Policy(decide=lambda _: [], options={"share": 0.5, "count": 3, "eager": False})
CUTS = Policy(decide=lambda _: [], cuts_rounds=True)


@pytest.mark.parametrize(
    "options", [{}, {"share": 0.7}, {"share": 1}, {"share": 0}, {"count": 4}, {"eager": True}]
)
def test_options_of_their_kind_are_taken(options: dict[str, object]) -> None:
    """A whole number is a number, too."""
    check_policy(Spec.make({"policy_options": options}), SOME, workers=1)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"shares": 0.7}, "policy_options.shares = 0.7: .* it has: share, count, eager"),
        ({"share": "much"}, "policy_options.share = 'much': must have the type of its default"),
        ({"share": True}, "must have the type of its default, 0.5"),
        ({"eager": 1}, "must have the type of its default, False"),
        ({"count": -1}, "must not be negative"),
        ({"count": 1.5}, "must be a whole number"),
    ],
)
def test_other_options_are_refused(options: dict[str, object], message: str) -> None:
    """One line says which and what is accepted."""
    with pytest.raises(SpecError, match=message):
        check_policy(Spec.make({"policy_options": options}), SOME, workers=1)


def test_a_package_registers_a_policy_and_nothing_else() -> None:
    """The line names the package's member, rather than an error inside Downpour."""
    with pytest.raises(SpecError, match="policy = 'mine': must be a Policy, but its package has 3"):
        check_policy(Spec.model_construct(policy="mine"), 3, workers=1)  # type: ignore[arg-type]


def test_a_blacklist_looks_back_no_further_than_is_remembered() -> None:
    """It would wait for more rounds than it is ever shown, and leave no worker out."""
    options = {"rounds": ROUNDS_REMEMBERED}
    check_policy(Spec.make({"policy_options": options}), POLICIES["blacklist"], workers=3)
    options = {"rounds": ROUNDS_REMEMBERED + 1}
    with pytest.raises(SpecError, match=r"policy_options.rounds = 17: must be at most 16"):
        check_policy(Spec.make({"policy_options": options}), POLICIES["blacklist"], workers=3)


def test_there_are_fewer_standbys_than_workers() -> None:
    """Otherwise no worker would be left to train."""
    check_policy(Spec(standbys=2), replace(SOME, watches=True), workers=3)
    with pytest.raises(
        SpecError, match=r"standbys = 3: must be less than the number of workers, 3"
    ):
        check_policy(Spec(standbys=3), SOME, workers=3)


def test_a_policy_that_only_waits_has_no_standbys() -> None:
    """They would be kept free, and never be called."""
    with pytest.raises(
        SpecError, match=r"standbys = 1: must be 0, because policy 'wait' never uses standbys"
    ):
        check_policy(Spec(policy="wait", standbys=1), SOME, workers=3)


@pytest.mark.parametrize(
    "fields",
    [
        {"split": "class"},
        {"optimizer_state": "keep"},
        {"compression": "topk"},
        {"meet": 2},
    ],
)
def test_rounds_are_cut_anew_only_where_shards_do_not_differ(fields: dict[str, object]) -> None:
    """One of a class, with a state of its own or trained in parts cannot be any other."""
    check_policy(Spec(), CUTS, workers=3)
    with pytest.raises(SpecError, match="recuts the shards"):
        check_policy(Spec.make(fields), CUTS, workers=3)


@pytest.mark.parametrize("name", POLICIES)
def test_every_policys_own_options_are_taken(name: str) -> None:
    """Who writes down what holds anyway changes nothing."""
    options = dict(POLICIES[name].options)
    check_policy(Spec.make({"policy_options": options}), POLICIES[name], workers=4)
