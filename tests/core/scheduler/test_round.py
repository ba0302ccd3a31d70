"""The state of a round."""

from hypothesis import given
from hypothesis import strategies as st

from downpour.base.states import Failure, FailureKind
from downpour.core.scheduler.round import Round
from tests.core.scheduler import make

LOST = Failure(FailureKind.LOST, "silent")


def offered(current: Round, count: int = 100) -> list[int]:
    """Return the shards that are offered to a policy."""
    return [offer.shard for offer in current.pending(count)]


def test_a_late_answer_takes_a_pending_shard_from_the_offer() -> None:
    """An attempt that was given up may still publish, and then no other one is needed."""
    current = Round("one", 0, (10, 20))
    attempt = current.assign(0, "ann", 0.0)
    current.give_up(0, "ann", LOST)
    current.publish(make.accepted(attempt, "ann", make.update("late")), 9.0)
    assert offered(current) == [1]
    assert not current.tasks[0].accepts(attempt)


def test_updates_are_unreported_until_their_task_has_one() -> None:
    """Those of attempts that were given up, too; not those that a refusal has made void."""
    current = Round("one", 0, (10, 20))
    lost, second = current.assign(0, "ann", 0.0), current.assign(1, "bob", 0.0)
    current.give_up(0, "ann", LOST)
    assert current.unreported() == ((lost, "ann"), (second, "bob"))
    current.publish(make.accepted(second, "bob", make.update("bad")), 1.0)
    assert current.unreported() == ((lost, "ann"),)
    current.refuse(1, Failure(FailureKind.STORE, "altered"))
    anew = current.assign(1, "cid", 2.0)
    assert current.unreported() == ((lost, "ann"), (anew, "cid"))


def test_a_round_finds_only_the_attempts_that_were_made() -> None:
    """Whatever numbers an attempt has, looking it up never raises."""
    current = Round("one", 3, (10, 20))
    made = current.assign(1, "ann", 0.0)
    assert current.find(made) is current.tasks[1]
    strangers = [(3, 1, 1), (3, 1, -1), (3, 0, 0), (3, -1, 0), (3, 2, 0), (2, 1, 0), (-1, 1, 0)]
    assert all(current.find(make.attempt("one", *numbers)) is None for numbers in strangers)
    assert current.find(make.attempt("two", 3, 1, 0)) is None


def test_a_shard_may_have_several_workers() -> None:
    """It is pending again only when the last of them gave it up; the first update ends them all."""
    current = Round("one", 0, (10, 20))
    current.assign(0, "ann", 0.0)
    second = current.assign(0, "bob", 1.0)
    current.give_up(0, "ann", LOST)
    assert (offered(current), current.tasks[0].held_by) == ([1], {"bob": second})
    third = current.assign(0, "cid", 2.0)
    current.publish(make.accepted(third, "cid", make.update("first")), 3.0)
    assert (current.tasks[0].held_by, current.holders()) == ({}, ())


def test_an_update_or_a_drop_ends_every_hand_over() -> None:
    """Otherwise a refused shard could not be handed over by that worker again."""
    current = Round("one", 0, (10, 20))
    attempts = [current.assign(shard, "ann", 0.0) for shard in (0, 1)]
    for task in current.tasks:
        task.leaving["ann"] = "bob", 0.0
    current.publish(make.accepted(attempts[0], "ann", make.update("u")), 1.0)
    current.drop([1])
    assert [task.leaving for task in current.tasks] == [{}, {}]


def test_a_held_back_shard_that_is_dropped_is_no_longer_held_back() -> None:
    """Nor is it outstanding or on offer."""
    current = Round("one", 1, (10, 20), held_back=[0])
    assert (current.outstanding, offered(current)) == (1, [1])
    current.drop([0])
    assert (current.held_back, current.outstanding, offered(current)) == (set(), 1, [1])


def test_every_idle_worker_finds_a_shard_it_did_not_fail_on() -> None:
    """As many shards are offered as it takes, and no more."""
    current = Round("one", 0, (10,) * 10)
    for shard in (0, 1, 2):
        current.assign(shard, "bob", 0.0)
        current.give_up(shard, "bob", LOST)
    assert current.enough_for(dict.fromkeys(["ann"]).keys()) == 1
    assert current.enough_for(dict.fromkeys(["ann", "bob"]).keys()) == 5
    current.assign(3, "cid", 0.0)
    current.give_up(3, "cid", LOST)
    assert current.enough_for(dict.fromkeys(["ann", "bob", "cid"]).keys()) == 6
    assert current.enough_for(dict.fromkeys(["ann", "cid"]).keys()) == 3


def test_an_idle_worker_is_shown_a_shard_that_it_trained_last() -> None:
    """However far down the order that is, until the shard was assigned: it may be taken from it."""
    homes = {3: "ann", 5: "ann", 0: "bob"}
    current = Round("one", 1, (10,) * 6, homes=homes)
    shown = [(offer.shard, offer.home) for offer in current.pending(2, ["ann", "cid"])]
    assert shown == [(0, "bob"), (1, None), (3, "ann")]
    current.assign(3, "ann", 0.0)
    assert [offer.shard for offer in current.pending(1, ["ann"])] == [0, 5]
    current.give_up(3, "ann", None)
    assert current.tasks[3].offer.home is None
    assert [offer.shard for offer in current.pending(1, ["ann"])] == [0, 5]


def test_a_shard_that_was_held_back_knows_its_latest_home() -> None:
    """If rounds overlap, its task of the round before ends after the round has begun."""
    homes = dict[int, str]()
    current = Round("one", 1, (10, 10), held_back=[0], homes=homes)
    homes[0] = "bob"
    current.release(0)
    assert [offer.home for offer in current.pending(9)] == ["bob", None]


def test_a_shard_whose_worker_was_lost_may_go_to_that_name_once_more() -> None:
    """A shard that ends every worker, or a machine that does, costs each name two attempts."""
    current = Round("one", 0, (10,))
    seen = []
    for _ in range(2):
        current.assign(0, "bob", 0.0)
        current.give_up(0, "bob", LOST, gone=True)
        seen.append(current.tasks[0].offer.lost_on)
    assert seen == [{"bob"}, set()]
    current.assign(0, "ann", 0.0)
    current.give_up(0, "ann", LOST)
    assert current.tasks[0].offer.lost_on == set()


@given(st.lists(st.tuples(st.integers(0, 5), st.sampled_from(["assign", "back", "publish"]))))
def test_the_offer_is_always_the_pending_tasks(steps: list[tuple[int, str]]) -> None:
    """Whatever is done in whatever order, the offer equals a plain look through the tasks."""
    current = Round("one", 0, (10,) * 6, homes={1: "ann", 4: "bob"})
    for shard, step in steps:
        state = current.tasks[shard].life.state
        if step == "assign" and state == "pending":
            current.assign(shard, "ann", 0.0)
        elif step == "back" and state == "running":
            current.give_up(shard, "ann", LOST)
        plain = [task.shard for task in current.tasks if task.life.state == "pending"]
        assert offered(current) == plain
        assert [offered(current, count) for count in (0, 2)] == [[], plain[:2]]
        assert current.any_pending == bool(plain)
