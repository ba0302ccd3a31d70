"""An experiment's life from submission to its end, and the queue in which it waits."""

from enum import StrEnum
from typing import Any

import pytest

from downpour.base import states
from downpour.base.errors import IllegalTransition
from downpour.base.states import ExperimentState, FailureKind
from downpour.core.scheduler import Scheduler
from downpour.core.scheduler import events as on
from downpour.core.scheduler import outputs as out
from downpour.core.scheduler.queue import waiting
from tests.core.scheduler import make
from tests.core.scheduler.stage import Play, of

TABLES = {
    "task": (states.TASK, states.TaskState.PENDING),
    "worker": (states.WORKER, states.WorkerState.AWAITED),
    "experiment": (states.EXPERIMENT, states.ExperimentState.WAITING),
}


def test_an_illegal_step_tells_the_story() -> None:
    """Who asks for a step that is not in the table learns what had happened before."""
    life = states.Lifecycle("task round 0 shard 3", states.TASK, states.TaskState.PENDING)
    life.step("assign")
    life.step("publish")
    life.step("apply")
    with pytest.raises(IllegalTransition) as caught:
        life.step("refuse")
    assert caught.value.story == (
        "pending",
        "assign → running",
        "publish → published",
        "apply → applied",
    )
    assert "task round 0 shard 3: no step 'refuse' from 'applied'" in str(caught.value)


def test_an_illegal_step_changes_nothing() -> None:
    """After a refused step the life goes on where it was."""
    life = states.Lifecycle("worker ann", states.WORKER, states.WorkerState.IDLE)
    with pytest.raises(IllegalTransition):
        life.step("release")
    assert life.state == "idle"
    life.step("assign")
    assert life.state == "busy"


def test_a_long_story_keeps_its_end() -> None:
    """A worker that has lived through a thousand tasks remembers the last few."""
    life = states.Lifecycle("worker ann", states.WORKER, states.WorkerState.IDLE)
    for _ in range(1000):
        life.step("assign")
        life.step("release")
    life.step("go")
    with pytest.raises(IllegalTransition) as caught:
        life.step("assign")
    assert len(caught.value.story) == 32
    assert caught.value.story[-2:] == ("release → idle", "go → gone")


@pytest.mark.parametrize(("table", "first"), TABLES.values(), ids=TABLES)
def test_every_state_can_be_reached(table: states.Table[Any, Any], first: StrEnum) -> None:
    """No row of a table is dead."""
    reached = {first}
    while grown := {after for (before, _), after in table.items() if before in reached} - reached:
        reached |= grown
    assert reached == {first} | {before for before, _ in table} | set(table.values())


@pytest.mark.parametrize(
    ("table", "ends"),
    [
        (states.TASK, {"applied", "dropped"}),
        (states.WORKER, {"gone"}),
        (states.EXPERIMENT, {"finished", "failed", "cancelled"}),
    ],
    ids=TABLES,
)
def test_a_life_ends_where_it_should(table: states.Table[Any, Any], ends: set[str]) -> None:
    """From these states, and no others, there is no further step."""
    assert set(table.values()) - {before for before, _ in table} == ends


@pytest.mark.parametrize(("table", "first"), TABLES.values(), ids=TABLES)
def test_may_and_step_agree(table: states.Table[Any, Any], first: StrEnum) -> None:
    """`may` says beforehand whether `step` would raise."""
    for name in {name for _, name in table}:
        life = states.Lifecycle("worker-1", table, first)
        if life.may(name):
            life.step(name)
            assert life.state == table[first, name]
        else:
            with pytest.raises(IllegalTransition):
                life.step(name)


def test_a_timeout_is_long_until_gaps_are_known_and_never_very_short() -> None:
    """The first step of all takes long, and a short pause now says little about the next one."""
    steps, heartbeats = states.progress_timeout(), states.heartbeat_timeout()
    assert (steps.seconds, heartbeats.seconds) == (600.0, 10.0)
    steps.learn(0.5)
    assert steps.seconds == 60.0
    steps.learn(20.0)
    assert steps.seconds == 200.0
    for _ in range(3):
        heartbeats.learn(1.0)
    assert heartbeats.seconds == 5.0


def test_the_one_with_the_highest_priority_is_next() -> None:
    """Of equal ones, the first submitted; the running one is not disturbed; paused ones wait."""
    play = Play()
    for name, priority in (("one", 0), ("two", 1), ("three", 2), ("four", 2)):
        spec = make.spec()
        play.happen(on.ExperimentSubmitted, experiment=name, spec=spec, priority=priority)
    play.happen(on.PauseAsked, experiment="three", paused=True)
    assert [each.name for each in waiting(play.core.state)] == ["four", "two", "three"]
    play.happen(on.PauseAsked, experiment="two", priority=3)
    later = Scheduler()
    for entry in play.entries:
        later.replay(play.now, entry)
    for core in (play.core, later):
        assert [each.name for each in waiting(core.state)] == ["two", "four", "three"]
    play.happen(on.PauseAsked, experiment="two", priority=1)
    for ended, following in (("one", "four"), ("four", "two"), ("two", None)):
        play.happen(on.ExperimentCancelled, experiment=ended, reason="enough")
        active = play.core.state.active
        assert (active.name if active is not None else None) == following
    play.happen(on.PauseAsked, experiment="three", paused=False)
    assert play.core.state.open_as("three") is not None


def beside(**spec: Any) -> Play:
    """Return a scheduler with an experiment of one shard, and one of two beside it."""
    play = Play()
    play.join("ann", "bob", "cid", "dot")
    play.submit(10, policy="wait", **spec)
    play.submit(10, 10, name="two", policy="wait")
    return play


def holders(play: Play) -> dict[str, set[str]]:
    """Return who trains each open experiment."""
    names = {each.name: set[str]() for each in play.core.state.open}
    for worker in play.core.state.workers:
        if worker.running is not None:
            names[worker.running.experiment].add(worker.name)
    return names


def test_the_next_experiment_has_the_workers_that_the_first_cannot_use() -> None:
    """Between its rounds, the first one keeps as many workers as it has shards: those it had."""
    play = beside(epochs=2)
    assert holders(play) == {"one": {"ann"}, "two": {"bob", "cid"}}
    assert not of(play.publish("ann"), out.Assigned)
    play.fail("bob", make.attempt("two", 0, 0, 0), FailureKind.TASK, "bad disk")
    assert holders(play) == {"one": set(), "two": {"cid", "dot"}}
    play.aggregate()
    assert holders(play)["one"] == {"ann"}
    play.happen(on.WorkerLost, worker="ann", reason="gone")
    assert holders(play) == {"one": {"bob"}, "two": {"cid", "dot"}}


def test_experiments_side_by_side_end_by_themselves() -> None:
    """The end of one, or its cancellation, takes no worker from the other."""
    for ended, left in (("one", {"two": {"bob", "cid"}}), ("two", {"one": {"ann"}})):
        play = beside()
        cancelled = play.happen(on.ExperimentCancelled, experiment=ended, reason="enough")
        assert {each.attempt.experiment for each in of(cancelled, out.Cancel)} == {ended}
        assert holders(play) == left


def test_both_go_on_after_a_takeover() -> None:
    """Each with its own workers, once they have registered."""
    play = beside()
    alone = {name: Scheduler() for name in ("one", "two")}
    for entry in play.entries:
        alone[entry.experiment].replay(play.now, entry)
    later = Scheduler()
    later.take_in([core.state.experiments[name] for name, core in alone.items()], play.now)
    prepared = later.resume()
    assert [each.experiment for each in prepared if isinstance(each, out.Prepare)] == ["one", "two"]
    assert {worker.name for worker in later.state.workers} == {"ann", "bob", "cid"}


def test_an_experiment_that_fits_nobody_here_holds_no_other_up() -> None:
    """The next one begins; the first one goes on once a worker comes that fits."""
    play = Play()
    play.join("ann")
    play.submit(10, needs=["gpu"])
    play.submit(10, name="two")
    assert holders(play) == {"one": set(), "two": {"ann"}}
    play.join("fast", labels=("gpu=a40",))
    assert holders(play) == {"one": {"fast"}, "two": {"ann"}}


def test_a_paused_experiment_survives_a_takeover_and_goes_on_with_its_work() -> None:
    """The next manager knows that it was paused, and what it has; another experiment runs there."""
    play = Play()
    play.join("ann")
    play.submit(10, 10, evaluate_every=0)
    play.happen(on.ExperimentSubmitted, experiment="two", spec=make.spec(shards=1))
    play.happen(on.PauseAsked, experiment="one", paused=True)
    assert play.core.state.open_as("one") is not None  # until its worker has ended
    assert not of(play.publish("ann"), out.Assigned)
    assert play.core.state.open_as("two") is not None
    alone = {name: Scheduler() for name in ("one", "two")}
    for entry in play.entries:
        alone[entry.experiment].replay(play.now, entry)
    later = Scheduler()
    later.take_in([core.state.experiments[name] for name, core in alone.items()], play.now)
    paused = later.state.experiments["one"]
    assert (paused.life.state, paused.paused) == (ExperimentState.WAITING, True)
    assert later.state.open_as("two") is not None
    later.handle(on.ExperimentCancelled(at_seconds=20.0, experiment="two", reason="enough"))
    asked = later.handle(on.PauseAsked(at_seconds=21.0, experiment="one", paused=False))
    (prepare,) = [one for one in asked.commands if isinstance(one, out.Prepare)]
    assert (prepare.experiment, prepare.dataset) == ("one", "d")
    assert [key.shard for key in paused.arrived] == [0]
