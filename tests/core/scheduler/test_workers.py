"""The state of living workers, and of those that the journal alone knows."""

from dataclasses import replace

import pytest

from downpour.base.errors import IllegalTransition
from downpour.base.states import BLAMELESS
from downpour.base.values import AttemptId
from downpour.core.node.manager import heartbeat_reply
from downpour.core.scheduler import Scheduler
from downpour.core.scheduler import events as on
from downpour.core.scheduler import outputs as out
from downpour.core.scheduler.workers import Worker, Workers
from tests.core.scheduler import make
from tests.core.scheduler.stage import Outcome, Play, of


def with_ann() -> tuple[Workers, Worker]:
    """Return workers of whom ann is the only one."""
    workers = Workers()
    workers.join("ann", 0.0)
    [ann] = workers
    return workers, ann


def test_heartbeats_that_come_late_are_waited_for_longer() -> None:
    """Four times the longest gap that was seen; a gap beyond the limit is the manager's own."""
    _, ann = with_ann()
    assert ann.silence_limit_seconds == 10.0
    for seconds in (2.0, 4.0, 6.0, 106.0):
        ann.beat(seconds)
    assert ann.silence_limit_seconds == 8.0


def test_a_busy_worker_cannot_be_given_more() -> None:
    """A worker has one task at a time."""
    workers, _ = with_ann()
    workers.assign("ann", make.attempt("one", 0, 0, 0), 1.0)
    with pytest.raises(IllegalTransition, match="worker ann: no step 'assign' from 'busy'"):
        workers.assign("ann", make.attempt("one", 0, 1, 0), 1.0)


def test_a_new_attempt_has_taken_no_time_to_start() -> None:
    """What an earlier one took is its own."""
    workers, ann = with_ann()
    ann.startup_seconds = 7.0
    workers.assign("ann", make.attempt("one", 0, 0, 0), 1.0)
    assert ann.startup_seconds == 0.0


def test_a_stuck_worker_is_not_able() -> None:
    """It is when it reports that it works at nothing; an unfit one when it may, and for others.

    One that joins with an attempt of another manager is stuck. If it leaves, its name is free.
    """
    workers = Workers()
    for name in ("ann", "bob", "cid"):
        workers.join(name, 0.0)
    workers.stick("cid")
    workers.assign("ann", make.attempt("one", 0, 0, 0), 1.0)
    workers.stick("ann")
    workers.exclude("bob", "one", "it lacks a label")
    assert not workers.able_for("one")
    assert not workers.idle_for("one")
    assert list(workers.idle_for("two")) == ["bob"]
    workers.unstick("ann")
    workers.unstick("bob")
    assert list(workers.able_for("one")) == ["ann"]
    workers.readmit("one")
    assert list(workers.able_for("one")) == ["ann", "bob"]
    workers.remove("cid")
    workers.join("cid", 2.0)
    assert list(workers.able_for("one")) == ["ann", "bob", "cid"]


def test_an_awaited_worker_is_forgotten_with_its_attempt() -> None:
    """We know nothing else of it."""
    workers, attempt = Workers(), make.attempt("one", 0, 0, 0)
    for name in ("ann", "bob"):
        workers.expect(name, attempt, 0.0)
    workers.stick("ann")
    assert workers.release("bob", attempt)
    assert len(workers) == 0


def test_a_hand_over_at_the_first_step_is_measured() -> None:
    """Else it would count as one that is as fast as the others, and get the next late shard."""
    workers, ann = with_ann()
    attempt = make.attempt("one", 0, 0, 0)
    workers.assign("ann", attempt, 1.0, samples=100)
    loaded = replace(make.progress(attempt), steps_done=0, steps_total=50, elapsed_seconds=2.0)
    ann.mention(loaded, 3.0)
    ann.handed_over(0.0, 4.0)
    assert ann.speed(4.0) is None
    ann.handed_over(0.02, 7.0)
    speed = ann.speed(7.0)
    assert speed is not None
    assert (speed.samples_per_second, speed.step_seconds) == pytest.approx((0.5, 4.0))
    assert not speed.at_most


WORKERS = tuple(f"w{n}" for n in range(6))


class Restarted(Play):
    """Six workers were given a shard each, and no retry; then the manager died, and is back."""

    def __init__(self) -> None:
        super().__init__()
        self.submit(*(1,) * 7, at_seconds=0.0, epochs=1, retries=0, evaluate_every=0)
        self.join(*WORKERS, at_seconds=1.0)
        self.core = Scheduler()
        for entry in self.entries:
            self.core.replay(1.0, entry)
        self.core.resume()

    def given_up(self, at_seconds: float) -> list[out.GivenUp]:
        """Let time pass; returns what is given up then."""
        return of(self.happen(on.Tick, at_seconds), out.GivenUp)

    def prepared(self) -> list[Outcome]:
        """What the experiment needs to go on is there again."""
        return self.prepare(*(1,) * 7, at_seconds=1.0)

    def attempt(self, worker: str) -> AttemptId:
        """Return what a worker was given by the first manager."""
        return make.attempt("one", 0, WORKERS.index(worker), 0)


@pytest.fixture
def restarted() -> Restarted:
    """The second manager has read the journal and has heard from no worker yet."""
    return Restarted()


def test_a_worker_that_has_not_registered_is_asked_for_nothing(restarted: Restarted) -> None:
    """Not even for a pending shard; nor is it idle once its attempt is over."""
    assert not of(restarted.prepared(), out.Assign)
    assert not of(restarted.publish("w0", at_seconds=1.0), out.Assign)
    assert not restarted.core.state.workers.idle


def test_a_heartbeat_alone_is_no_registration(restarted: Restarted) -> None:
    """The worker is told to register, because a manager that was just started cannot call it."""
    restarted.prepared()
    restarted.beat("w0", make.progress(restarted.attempt("w0")), at_seconds=2.0)
    assert not heartbeat_reply(restarted.core, "w0", [], can_call=True).known
    restarted.join("w0", at_seconds=2.0, running=restarted.attempt("w0"))
    assert heartbeat_reply(restarted.core, "w0", [], can_call=True).known


def test_a_worker_that_comes_back_with_its_attempt_goes_on(restarted: Restarted) -> None:
    """It is asked for nothing: it has what it was asked for."""
    restarted.prepared()
    running = restarted.attempt("w0")
    assert restarted.join("w0", at_seconds=2.0, running=running) == []


def test_a_worker_that_comes_back_without_its_attempt_is_asked_for_it_at_once(
    restarted: Restarted,
) -> None:
    """The same attempt, which is in the journal already: the worker is asked, and no fact is noted.

    The first manager may have died before it could ask, or both did.
    """
    restarted.prepared()
    [again] = restarted.join("w0", at_seconds=2.0)
    assert isinstance(again, out.Assign)
    assert (again.assigned.worker, again.assigned.attempt) == ("w0", restarted.attempt("w0"))


def test_a_worker_at_its_last_report_is_asked_for_the_next_attempt(restarted: Restarted) -> None:
    """The manager died between taking the report in and answering it."""
    restarted.prepared()
    former = make.attempt("e", 0, 6, 0)
    [again] = restarted.join("w0", at_seconds=2.0, running=former)
    assert isinstance(again, out.Assign)
    assert again.assigned.attempt == restarted.attempt("w0")


def test_a_worker_that_returns_before_the_data_is_asked_when_it_is_there(
    restarted: Restarted,
) -> None:
    """A task cannot be described before."""
    before = len(restarted.happened)
    restarted.join(*WORKERS, at_seconds=1.0)
    assert restarted.happened[before:] == []
    asked = [one.assigned.worker for one in of(restarted.prepared(), out.Assign)]
    assert asked == list(WORKERS)


def test_a_silent_worker_loses_its_attempt_after_a_restart_without_a_retry(
    restarted: Restarted,
) -> None:
    """The time counts from the restart; here there are no retries, and the experiment goes on."""
    restarted.prepared()
    assert restarted.happen(on.Tick, 10.9) == []
    given_up = restarted.given_up(11.5)
    assert [c.worker for c in given_up] == list(WORKERS)
    assert {c.failure for c in given_up} <= BLAMELESS
    [_, asked] = restarted.join("new", at_seconds=12.0)
    assert isinstance(asked, out.Assign)
    assert restarted.core.state.experiments["one"].life.state == "running"


def test_a_worker_whose_registration_is_refused_does_not_hold_its_shard_for_ever(
    restarted: Restarted,
) -> None:
    """It is heard of, but it neither runs what it held nor can it be asked for it."""
    restarted.prepared()
    for second in range(2, 12):
        restarted.beat("w0", at_seconds=float(second))
    [given_up] = [fact for fact in restarted.given_up(11.5) if fact.worker == "w0"]
    assert given_up.failure in BLAMELESS


def test_a_worker_that_mentions_its_attempt_keeps_it(restarted: Restarted) -> None:
    """It works at it, and will report it, even if registering takes long."""
    restarted.prepared()
    for second in range(2, 12):
        restarted.beat("w0", make.progress(restarted.attempt("w0")), at_seconds=float(second))
    given_up = restarted.given_up(11.5)
    assert [c.worker for c in given_up] == list(WORKERS[1:])


def test_users_see_which_workers_come_and_go(restarted: Restarted) -> None:
    """In the last decisions, in words; and a dismissal says whether the worker was lost."""
    restarted.prepared()
    restarted.join("new", at_seconds=2.0)
    happened = restarted.happen(on.WorkerLost, worker="new", reason="called in vain")
    [gone] = of(happened, out.Dismissed)
    assert gone.lost
    assert restarted.said[-2:] == ["new joined", "new is lost: called in vain"]
