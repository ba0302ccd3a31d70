"""What a worker decides, without a clock, a thread or a socket."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from downpour.base.errors import Refused
from downpour.base.states import Failure, FailureKind
from downpour.base.values import Snapshot
from downpour.core.node.attempt import HeldAttempt
from downpour.core.node.worker import (
    Register,
    Stop,
    Stopped,
    TryAnotherManager,
    WorkerNode,
    next_address,
)
from tests.specs import SNAPSHOT, plain_attempt


def held(number: int) -> HeldAttempt:
    """Make an attempt."""
    return HeldAttempt(plain_attempt(round=number))


def busy(number: int = 0) -> tuple[WorkerNode[HeldAttempt], HeldAttempt]:
    """Make a worker that trains an attempt."""
    node, first = WorkerNode[HeldAttempt]("anna"), held(number)
    node.train(first, 0)
    assert node.take(1.0) is first
    return node, first


def is_done(node: WorkerNode[HeldAttempt]) -> bool:
    """Whether it would say goodbye; a function, so that a type checker keeps no answer."""
    return node.is_done


def test_one_attempt_runs_at_a_time_and_the_newest_comes_next() -> None:
    """An attempt accepted in between is forgotten; the running one is stopped."""
    node, first = busy()
    second, third = held(1), held(2)
    assert node.train(second, 0) == [Stop(first, HeldAttempt.stop)]
    assert node.train(third, 0) == [Stop(first, HeldAttempt.stop)]
    assert node.take(2.0) is None
    assert [one.attempt for one in node.held] == [first.attempt, third.attempt]
    assert node.attempt == third.attempt, "it registers with the newest"
    report = node.ended(Stopped())
    assert report == Failure(FailureKind.CANCELLED, "anna handed it back")
    assert node.take(2.0) is None, "not before its report is acknowledged"
    node.report_taken()
    assert node.take(2.0) is third
    assert third.began_at_seconds == 2.0


def test_a_repeated_call_changes_nothing() -> None:
    """The answer to the first was lost."""
    node, first = busy()
    assert node.train(held(0), 0) == []
    assert node.running is first
    assert node.held == (first,)


def test_other_work_under_the_same_name_is_another_attempt() -> None:
    """A manager whose journal has lost its end gives a number again, for another share, say."""
    node, first = busy()
    other = held(0)
    other.part = ("model-000000", 0.5)
    assert node.train(other, 0) == [Stop(first, HeldAttempt.stop)]
    node.ended(Stopped())
    node.report_taken()
    assert node.take(2.0) is other


def test_an_attempt_that_is_asked_for_again_while_it_stops_is_begun_again() -> None:
    """It is another object to the worker, although it has the same name."""
    node, _ = busy()
    node.train(held(1), 0)
    again = held(0)
    node.train(again, 0)
    node.ended(Stopped())
    node.report_taken()
    assert node.take(1.0) is again


def test_a_manager_of_an_earlier_term_is_refused() -> None:
    """Even if the worker meets it after its successor."""
    node = WorkerNode[HeldAttempt]("anna")
    node.met(3, 1.0, 1.0)
    node.met(2, 1.0, 1.0)
    with pytest.raises(Refused, match=r"^term: is 2, and anna works for a manager of term 3"):
        node.train(held(0), 2)
    assert node.held == ()
    assert node.train(held(0), 3) == []


def test_an_attempt_that_is_cancelled_before_it_begins_is_forgotten() -> None:
    """There is nothing to report about it."""
    node = WorkerNode[HeldAttempt]("anna")
    first = held(0)
    node.train(first, 0)
    assert node.cancel(first.attempt) == [Stop(first, HeldAttempt.stop)]
    assert node.take(0.0) is None
    assert node.attempt is None


def test_a_call_about_another_attempt_leaves_the_running_one() -> None:
    """It is late, and of an attempt that this worker no longer holds."""
    node, first = busy()
    late = held(5).attempt
    assert node.cancel(late) == node.hand_over(late) == []
    assert node.hand_over(first.attempt) == [Stop(first, HeldAttempt.save_and_stop)]


@pytest.mark.parametrize("accepted_first", [True, False])
def test_a_hand_over_is_remembered_until_its_attempt_has_begun(*, accepted_first: bool) -> None:
    """The call may overtake the one that asks for the attempt."""
    node, first = WorkerNode[HeldAttempt]("anna"), held(0)
    actions = node.train(first, 0) if accepted_first else []
    actions += node.hand_over(first.attempt)
    actions += node.train(first, 0) if not accepted_first else []
    assert actions == [Stop(first, HeldAttempt.save_and_stop)]


def test_an_attempt_that_was_handed_over_once_is_trained_when_it_is_asked_for_again() -> None:
    """The request ends with the attempt."""
    node, first = busy()
    node.hand_over(first.attempt)
    assert node.ended(SNAPSHOT) is SNAPSHOT
    node.report_taken()
    assert node.train(held(0), 0) == []


def test_a_report_is_repeated_less_and_less_often() -> None:
    """At least once a second, for hours if necessary."""
    node, _ = busy()
    node.ended(SNAPSHOT)
    waits = [node.report_failed(1.0, may_be_heard_later=True) for _ in range(5_000)]
    assert waits[:4] == [0.2, 0.4, 0.8, 1.0]
    assert waits[-1] == 1.0
    assert node.report_failed(1.0, may_be_heard_later=False) is None
    assert node.held == ()


def test_a_worker_that_leaves_reports_nothing_that_it_gives_up() -> None:
    """The goodbye gives it back; an update that is ready, or what it could save, is told once."""
    node, first = busy()
    assert node.leave() == [Stop(first, HeldAttempt.save_or_stop)]
    assert not is_done(node)
    assert node.ended(Stopped()) is None
    assert is_done(node)
    other, _ = busy()
    other.leave()
    assert other.ended(SNAPSHOT) is SNAPSHOT
    assert other.report_failed(1.0, may_be_heard_later=True) is None
    assert is_done(other)


def test_a_worker_that_leaves_begins_nothing() -> None:
    """Neither the accepted attempt nor a later one."""
    node = WorkerNode[HeldAttempt]("anna")
    node.train(held(0), 0)
    node.leave()
    assert node.take(0.0) is None
    assert is_done(node)


def test_a_drained_worker_ends_its_accepted_attempt() -> None:
    """Later tasks are for other workers."""
    node, _ = busy()
    node.drain()
    node.train(held(1), 0)
    node.ended(Stopped())
    assert not is_done(node)
    node.report_taken()
    assert node.take(0.0) is None
    assert is_done(node)


def test_a_snapshot_is_known_once_a_manager_that_wants_it_has_answered() -> None:
    """A manager that does not know the worker, or the attempt, has not noted its snapshot."""
    node, first = busy()
    first.snapshot = SNAPSHOT
    actions = node.beat_answered(node.beat(), known=False, unwanted=())
    assert actions == [Register()]
    assert not first.snapshot_is_known
    actions = node.beat_answered(node.beat(), known=True, unwanted=(first.attempt,))
    assert actions == [Stop(first, HeldAttempt.stop)]
    assert not first.snapshot_is_known
    assert node.beat_answered(node.beat(), known=True, unwanted=()) == []
    assert first.snapshot_is_known


def test_a_snapshot_that_is_withdrawn_is_mentioned_no_more() -> None:
    """The one before it, which the manager knows, is mentioned."""
    node, first = busy()
    first.snapshot = first.known_snapshot = SNAPSHOT
    assert first.withdraw_unknown() is None
    newer = Snapshot(file=SNAPSHOT.file, steps_done=2, steps_total=2)
    first.snapshot = newer
    assert first.withdraw_unknown() is newer
    assert node.beat().running[0].snapshot is SNAPSHOT


def test_heartbeats_that_are_not_heard_come_soon_again() -> None:
    """A manager that was started again learns from them which workers it can call."""
    node = WorkerNode[HeldAttempt]("anna")
    node.met(0, 1.0, 5.0)
    assert node.until_next_beat(0.0) == 5.0
    assert node.beat_failed(elsewhere=False) == []
    assert node.until_next_beat(0.0) == 0.25
    assert node.beat_failed(elsewhere=True) == [TryAnotherManager()]
    node.beat_answered(node.beat(), known=True, unwanted=())
    assert node.until_next_beat(0.0) == 5.0


def test_the_answer_to_a_heartbeat_says_when_the_next_may_follow() -> None:
    """Among thousands of workers each sends fewer; if most of them leave, as many as before."""
    node = WorkerNode[HeldAttempt]("anna")
    node.met(0, 1.0, 1.0)
    node.beat_answered(node.beat(), known=True, unwanted=(), interval_seconds=4.0)
    assert node.until_next_beat(0.0) == 4.0
    node.beat_answered(node.beat(), known=True, unwanted=(), interval_seconds=0.02)
    assert node.until_next_beat(0.0) == 1.0


@given(st.text(max_size=2), st.lists(st.text(max_size=2), max_size=4), st.text(max_size=2))
def test_every_address_is_tried_in_turn(of_user: str, of_leader: list[str], last: str) -> None:
    """By turns; a worker never stays with an address that did not answer if there is another."""
    addresses = {of_user, *of_leader}
    seen = set()
    for _ in range(len(addresses) + 1):
        following = next_address(of_user, of_leader, last)
        assert following != last
        assert (following is None) == (addresses == {last})
        last = following if following is not None else last
        seen.add(last)
    assert seen == addresses
