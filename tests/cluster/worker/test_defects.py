"""The worker as users start it shows each defect that its node may have.

The same defects are planted in simulated workers (`tests/downpour_lab/trials/test_search.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from queue import Empty, SimpleQueue
from threading import Event
from typing import Any, TypeVar

import pytest

from downpour.base.errors import Refused
from downpour.base.states import FailureKind
from downpour.base.values import Snapshot, Update
from downpour.cluster.worker.attempt import TaskControl
from downpour.core.node.worker import WorkerNode
from tests.cluster.worker.offices import (
    PATIENCE_SECONDS,
    SNAPSHOT,
    UPDATE,
    Office,
    at_work,
    hands_over,
    task,
    until_cancelled,
)
from tests.core.node import defects

T = TypeVar("T")

_SOON_SECONDS = 0.6
"""Long enough to see that a defective worker does not do what a sound one does at once."""

_BEATS = 12


class Story:
    """What happens to a worker, and whether it does what it owes.

    Args:
        desk: its manager, a fake.
        office: the worker.
        seconds: how long to wait for what should happen.
    """

    def __init__(self, desk: Any, office: Office, seconds: float) -> None:
        self.desk = desk
        self.office = office
        self.seconds = seconds

    def next(self, queue: SimpleQueue[T]) -> T | None:
        """Return what comes next, or None where nothing does."""
        try:
            return queue.get(timeout=self.seconds)
        except Empty:
            return None

    def report(self) -> Any:
        """Return what is reported next."""
        found = self.next(self.desk.manager.reports)
        return found[1] if found is not None else None

    def begins(self, number: int) -> TaskControl:
        """Have a task begun, which waits until it is stopped."""
        self.office.work.act = until_cancelled
        self.office.client.train(task(number))
        assert self.next(self.office.work.began) is not None
        running = self.office.agent._node.running
        assert running is not None
        return running

    def begins_a_long_step(self) -> Event:
        """Have the first task begun; it goes on, or stops, when the test says so."""
        goes_on = Event()
        self.office.work.act = _stubborn(goes_on)
        self.office.client.train(task(0))
        self.next(self.office.work.began)
        return goes_on

    def mentions(self, *numbers: int) -> bool:
        """Whether one of the next heartbeats tells of exactly these attempts."""
        wanted = [task(number).id for number in numbers]
        for _ in range(_BEATS):
            beat = self.next(self.desk.manager.beats)
            if beat is not None and [one.attempt for one in beat.running] == wanted:
                return True
        return False


def a_refused_report_is_repeated(story: Story) -> bool:
    """A manager that is stopping refuses; the next one takes it."""
    story.desk.manager.refusals = 2
    story.office.client.train(task())
    return bool(story.report() == UPDATE)


def a_reported_attempt_is_done(story: Story) -> bool:
    """It is not begun again."""
    story.office.client.train(task())
    story.report()
    story.next(story.office.work.began)
    return story.mentions() and story.office.work.began.empty()


def a_snapshot_that_was_not_heard_of_is_not_known(story: Story) -> bool:
    """The manager is away when it is mentioned."""
    control = story.begins(0)
    story.desk.server.stop()
    control.snapshot = SNAPSHOT
    # The first failure may be of a heartbeat that left before there was a snapshot.
    looks = [story.next(story.office.looks) for _ in range(2)]
    return None not in looks and not control.snapshot_is_known


def another_manager_is_looked_for(story: Story) -> bool:
    """The one that was there is not any more."""
    story.desk.server.stop()
    return story.next(story.office.looks) is not None


def a_running_attempt_is_mentioned(story: Story) -> bool:
    """In its heartbeats."""
    story.begins(0)
    return story.mentions(0)


def an_accepted_attempt_is_mentioned(story: Story) -> bool:
    """Also while the one before it still has to stop."""
    goes_on = story.begins_a_long_step()
    story.office.client.train(task(1))
    mentioned = story.mentions(0, 1)
    goes_on.set()
    return mentioned


def a_superseded_attempt_stops(story: Story) -> bool:
    """It is handed back."""
    story.begins(0)
    story.office.client.train(task(1))
    return _was_cancelled(story.report())


def a_repeated_call_begins_nothing(story: Story) -> bool:
    """The attempt goes on."""
    control = story.begins(0)
    story.office.client.train(task(0))
    return not control.cancelled


def a_replaced_manager_is_refused(story: Story) -> bool:
    """The worker has met the next one."""
    story.desk.manager.term = 3
    story.office.agent.register("", story.office.server.address.port)
    try:
        story.office.client.train(task())
    except Refused:
        return True
    return False


def what_has_not_begun_is_handed_over(story: Story) -> bool:
    """It is asked for while the attempt before it stops."""
    goes_on = story.begins_a_long_step()
    story.office.work.act = _hands_over_where_asked
    story.office.client.train(task(1))
    story.office.client.hand_over(task(1).id)
    goes_on.set()
    reports = [story.report() for _ in range(2)]
    return isinstance(reports[1], Snapshot)


def what_is_asked_for_again_is_begun_again(story: Story) -> bool:
    """The manager has changed its mind twice, while the worker was in the middle of a step."""
    goes_on = story.begins_a_long_step()
    story.office.client.train(task(1))
    story.office.client.train(task(0))
    story.office.work.act = lambda _: UPDATE
    goes_on.set()
    return _was_cancelled(story.report()) and story.report() == UPDATE


def what_is_unwanted_stops(story: Story) -> bool:
    """The answer to a heartbeat says so."""
    story.begins(0)
    story.desk.manager.unwanted = (task(0).id,)
    return _was_cancelled(story.report())


def an_unknown_worker_registers_anew(story: Story) -> bool:
    """The answer to a heartbeat says that it is unknown."""
    story.next(story.desk.manager.registrations)
    story.desk.manager.known = False
    return story.next(story.desk.manager.registrations) is not None


def a_goodbye_hands_back(story: Story) -> bool:
    """And nothing else does."""
    story.begins(0)
    story.office.agent.leave()
    said = story.next(story.desk.manager.goodbyes)
    return said is not None and story.desk.manager.reports.empty()


def _stubborn(goes_on: Event) -> Callable[[TaskControl], Update]:
    """Make a task whose step lasts until the test says so."""

    def work(control: TaskControl) -> Update:
        assert goes_on.wait(PATIENCE_SECONDS)
        control.raise_if_cancelled()
        return UPDATE

    return work


def _hands_over_where_asked(control: TaskControl) -> Update:
    return hands_over(control) if control.to_save else UPDATE


def _was_cancelled(report: Any) -> bool:
    return isinstance(report, tuple) and report[0] is FailureKind.CANCELLED


STORIES: dict[type[WorkerNode[Any]], Callable[[Story], bool]] = {
    defects.DropsReports: a_refused_report_is_repeated,
    defects.NeverFree: a_reported_attempt_is_done,
    defects.BelievesItWasHeard: a_snapshot_that_was_not_heard_of_is_not_known,
    defects.StaysWithItsManager: another_manager_is_looked_for,
    defects.MentionsWhatItBegan: an_accepted_attempt_is_mentioned,
    defects.MentionsNothing: a_running_attempt_is_mentioned,
    defects.NeverStops: a_superseded_attempt_stops,
    defects.BeginsAnew: a_repeated_call_begins_nothing,
    defects.ServesTheReplaced: a_replaced_manager_is_refused,
    defects.HandsOverWhatItTrains: what_has_not_begun_is_handed_over,
    defects.ForgetsWhatItIsAskedAgain: what_is_asked_for_again_is_begun_again,
    defects.GoesOnUnwanted: what_is_unwanted_stops,
    defects.NeverRegistersAnew: an_unknown_worker_registers_anew,
    defects.ReportsWhatItHandsBack: a_goodbye_hands_back,
}


@pytest.mark.parametrize("story", STORIES.values(), ids=lambda story: story.__name__)
def test_a_worker_does_what_it_owes(desk: Any, story: Callable[[Story], bool]) -> None:
    """The shipped one does, over real sockets."""
    with at_work(desk) as office:
        assert story(Story(desk, office, PATIENCE_SECONDS))


@pytest.mark.parametrize("defect", defects.DEFECTS)
def test_a_defect_is_found_in_a_real_worker(desk: Any, defect: type[WorkerNode[Any]]) -> None:
    """The story that is about it ends in another way."""
    with at_work(desk, defect) as office:
        assert not STORIES[defect](Story(desk, office, _SOON_SECONDS))
