"""The state of living workers, and of those that the journal alone knows."""

from __future__ import annotations

from dataclasses import replace

import pytest

from downpour.base.errors import IllegalTransition
from downpour.base.states import BLAMELESS
from downpour.base.values import AttemptId
from downpour.core.node.manager import heartbeat_reply
from downpour.core.scheduler import Entry, Scheduler
from downpour.core.scheduler import events as on
from downpour.core.scheduler import outputs as out
from downpour.core.scheduler.invariants import check_invariants
from downpour.core.scheduler.workers import Workers
from tests.core.scheduler.conftest import Make
from tests.core.scheduler.outputs import Outcome, all_of


def test_heartbeats_that_come_late_are_waited_for_longer() -> None:
    """Four times the longest gap that was seen; a gap beyond the limit is the manager's own."""
    workers = Workers()
    workers.join("ann", 0.0)
    ann = workers.get("ann")
    assert ann is not None
    assert ann.silence_limit_seconds == 10.0
    for seconds in (2.0, 4.0, 6.0, 106.0):
        ann.beat(seconds)
    assert ann.silence_limit_seconds == 8.0


def test_a_busy_worker_cannot_be_given_more(make: Make) -> None:
    """A worker has one task at a time."""
    workers = Workers()
    workers.join("ann", 0.0)
    workers.assign("ann", make.attempt("one", 0, 0, 0), 1.0)
    with pytest.raises(IllegalTransition, match="worker ann: no step 'assign' from 'busy'"):
        workers.assign("ann", make.attempt("one", 0, 1, 0), 1.0)


def test_a_new_attempt_has_taken_no_time_to_start(make: Make) -> None:
    """What an earlier one took is its own."""
    workers = Workers()
    workers.join("ann", 0.0)
    ann = workers.get("ann")
    assert ann is not None
    ann.startup_seconds = 7.0
    workers.assign("ann", make.attempt("one", 0, 0, 0), 1.0)
    assert ann.startup_seconds == 0.0


def test_a_stuck_worker_is_not_able(make: Make) -> None:
    """It is again when it reports that it works at nothing; an unfit one when it may.

    One that joins with an attempt of another manager is stuck. If it leaves, its name is free.
    """
    workers = Workers()
    for name in ("ann", "bob", "cid"):
        workers.join(name, 0.0)
    workers.stick("cid")
    workers.assign("ann", make.attempt("one", 0, 0, 0), 1.0)
    workers.stick("ann")
    workers.exclude("bob", "it lacks a label")
    assert not workers.able
    assert not workers.idle
    workers.unstick("ann")
    workers.unstick("bob")
    assert list(workers.able) == ["ann"]
    workers.readmit()
    assert list(workers.able) == ["ann", "bob"]
    workers.remove("cid")
    workers.join("cid", 2.0)
    assert list(workers.able) == ["ann", "bob", "cid"]


def test_an_awaited_worker_is_forgotten_with_its_attempt(make: Make) -> None:
    """We know nothing else of it."""
    workers, attempt = Workers(), make.attempt("one", 0, 0, 0)
    for name in ("ann", "bob"):
        workers.expect(name, attempt, 0.0)
    workers.stick("ann")
    assert workers.release("bob", attempt)
    assert len(workers) == 0


def test_a_hand_over_at_the_first_step_is_measured(make: Make) -> None:
    """Else it would count as one that is as fast as the others, and get the next late shard."""
    workers = Workers()
    workers.join("ann", 0.0)
    attempt = make.attempt("one", 0, 0, 0)
    workers.assign("ann", attempt, 1.0, samples=100)
    ann = workers.get("ann")
    assert ann is not None
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


class Restarted:
    """Six workers were given a shard each, and no retry; then the manager died, and is back."""

    def __init__(self, make: Make) -> None:
        self.make = make
        first = Scheduler()
        self.core = Scheduler()
        spec = make.spec(shards=7, epochs=1, retries=0, evaluate_every=0)
        events: list[on.Event] = [
            on.ExperimentSubmitted(at_seconds=0.0, experiment="e", spec=spec),
            make.prepared("e", (1,) * 7),
            *(on.WorkerJoined(at_seconds=1.0, worker=name) for name in WORKERS),
        ]
        for event in events:
            for entry in (event, *first.handle(event).facts):
                if isinstance(entry, Entry):
                    self.core.replay(event.at_seconds, entry)
        self.core.resume()

    def happen(self, *events: on.Event) -> list[Outcome]:
        """Let the core take in some events; returns what it asks for."""
        happened: list[Outcome] = []
        for event in events:
            happened += all_of(self.core.handle(event))
            check_invariants(self.core.state)
        return happened

    def given_up(self, at_seconds: float) -> list[out.GivenUp]:
        """Let time pass; returns what is given up then."""
        happened = self.happen(on.Tick(at_seconds=at_seconds))
        return [fact for fact in happened if isinstance(fact, out.GivenUp)]

    def prepared(self) -> list[Outcome]:
        """What the experiment needs to go on is there again."""
        return self.happen(self.make.prepared("e", (1,) * 7, at_seconds=1.0))

    def beat(self, worker: str, at_seconds: float, *running: AttemptId) -> list[Outcome]:
        """A worker is heard of."""
        return self.happen(
            self.make.beat(worker, *tuple(map(self.make.progress, running)), at_seconds=at_seconds)
        )

    def attempt(self, worker: str) -> AttemptId:
        """Return what a worker was given by the first manager."""
        return self.make.attempt("e", 0, WORKERS.index(worker), 0)


@pytest.fixture
def restarted(make: Make) -> Restarted:
    """The second manager has read the journal and has heard from no worker yet."""
    return Restarted(make)


def test_a_worker_that_has_not_registered_is_asked_for_nothing(restarted: Restarted) -> None:
    """Not even for a pending shard; nor is it idle once its attempt is over."""
    assert not any(isinstance(c, out.Assign) for c in restarted.prepared())
    update = restarted.make.update("u")
    found = on.UpdatePublished(
        at_seconds=1.0, worker="w0", attempt=restarted.attempt("w0"), update=update
    )
    assert not any(isinstance(c, out.Assign) for c in restarted.happen(found))
    assert not restarted.core.state.workers.idle


def test_a_heartbeat_alone_is_no_registration(restarted: Restarted) -> None:
    """The worker is told to register, because a manager that was just started cannot call it."""
    restarted.prepared()
    restarted.beat("w0", 2.0, restarted.attempt("w0"))
    assert not heartbeat_reply(restarted.core, "w0", [], can_call=True).known
    restarted.happen(on.WorkerJoined(at_seconds=2.0, worker="w0", running=restarted.attempt("w0")))
    assert heartbeat_reply(restarted.core, "w0", [], can_call=True).known


def test_a_worker_that_comes_back_with_its_attempt_goes_on(restarted: Restarted) -> None:
    """It is asked for nothing: it has what it was asked for."""
    restarted.prepared()
    joined = on.WorkerJoined(at_seconds=2.0, worker="w0", running=restarted.attempt("w0"))
    assert restarted.happen(joined) == []


def test_a_worker_that_comes_back_without_its_attempt_is_asked_for_it_at_once(
    restarted: Restarted,
) -> None:
    """The same attempt, which is in the journal already: the worker is asked, and no fact is noted.

    The first manager may have died before it could ask, or both did.
    """
    restarted.prepared()
    [again] = restarted.happen(on.WorkerJoined(at_seconds=2.0, worker="w0"))
    assert isinstance(again, out.Assign)
    assert (again.assigned.worker, again.assigned.attempt) == ("w0", restarted.attempt("w0"))


def test_a_worker_at_its_last_report_is_asked_for_the_next_attempt(restarted: Restarted) -> None:
    """The manager died between taking the report in and answering it."""
    restarted.prepared()
    former = restarted.make.attempt("e", 0, 6, 0)
    [again] = restarted.happen(on.WorkerJoined(at_seconds=2.0, worker="w0", running=former))
    assert isinstance(again, out.Assign)
    assert again.assigned.attempt == restarted.attempt("w0")


def test_a_worker_that_returns_before_the_data_is_asked_when_it_is_there(
    restarted: Restarted,
) -> None:
    """A task cannot be described before."""
    joined = [on.WorkerJoined(at_seconds=1.0, worker=name) for name in WORKERS]
    assert restarted.happen(*joined) == []
    asked = [c.assigned.worker for c in restarted.prepared() if isinstance(c, out.Assign)]
    assert asked == list(WORKERS)


def test_a_silent_worker_loses_its_attempt_after_a_restart_without_a_retry(
    restarted: Restarted,
) -> None:
    """The time counts from the restart; here there are no retries, and the experiment goes on."""
    restarted.prepared()
    assert restarted.happen(on.Tick(at_seconds=10.9)) == []
    given_up = restarted.given_up(11.5)
    assert [c.worker for c in given_up] == list(WORKERS)
    assert {c.failure for c in given_up} <= BLAMELESS
    [_, asked] = restarted.happen(on.WorkerJoined(at_seconds=12.0, worker="new"))
    assert isinstance(asked, out.Assign)
    assert restarted.core.state.experiments["e"].life.state == "running"


def test_a_worker_whose_registration_is_refused_does_not_hold_its_shard_for_ever(
    restarted: Restarted,
) -> None:
    """It is heard of, but it neither runs what it held nor can it be asked for it."""
    restarted.prepared()
    for second in range(2, 12):
        restarted.beat("w0", float(second))
    [given_up] = [fact for fact in restarted.given_up(11.5) if fact.worker == "w0"]
    assert given_up.failure in BLAMELESS


def test_a_worker_that_mentions_its_attempt_keeps_it(restarted: Restarted) -> None:
    """It works at it, and will report it, even if registering takes long."""
    restarted.prepared()
    for second in range(2, 12):
        restarted.beat("w0", float(second), restarted.attempt("w0"))
    given_up = restarted.given_up(11.5)
    assert [c.worker for c in given_up] == list(WORKERS[1:])


def test_users_see_which_workers_come_and_go(restarted: Restarted) -> None:
    """In the last decisions, in words; and a dismissal says whether the worker was lost."""
    restarted.prepared()
    restarted.happen(on.WorkerJoined(at_seconds=2.0, worker="new"))
    [gone] = [
        command
        for command in restarted.happen(
            on.WorkerLost(at_seconds=3.0, worker="new", reason="called in vain")
        )
        if isinstance(command, out.Dismissed)
    ]
    assert gone.lost
    lines = [decision.text for decision in restarted.core.state.decisions]
    assert lines[-2:] == ["new joined", "new is lost: called in vain"]
