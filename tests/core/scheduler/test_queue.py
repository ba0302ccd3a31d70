"""Which experiment runs: by priority and submission, and without those that users paused."""

from downpour.base.states import ExperimentState
from downpour.core.scheduler import Scheduler
from downpour.core.scheduler import events as on
from downpour.core.scheduler import outputs as out
from downpour.core.scheduler.queue import waiting
from tests.core.scheduler import make
from tests.core.scheduler.stage import Play, of


def test_the_one_with_the_highest_priority_is_next() -> None:
    """Of equal ones, the first submitted; the running one is not disturbed; paused ones wait."""
    play = Play()
    for name, priority in (("one", 0), ("two", 1), ("three", 2), ("four", 2)):
        spec = make.spec()
        play.happen(on.ExperimentSubmitted, experiment=name, spec=spec, priority=priority)
    play.happen(on.PauseAsked, experiment="three", paused=True)
    assert [each.name for each in waiting(play.core.state)] == ["four", "two", "three"]
    for ended, following in (("one", "four"), ("four", "two"), ("two", None)):
        play.happen(on.ExperimentCancelled, experiment=ended, reason="enough")
        active = play.core.state.active
        assert (active.name if active is not None else None) == following
    play.happen(on.PauseAsked, experiment="three", paused=False)
    assert play.core.state.active_as("three") is not None


def test_a_paused_experiment_survives_a_takeover_and_goes_on_with_its_work() -> None:
    """The next manager knows that it was paused, and what it has; another experiment runs there."""
    play = Play()
    play.join("ann")
    play.submit(10, 10, evaluate_every=0)
    play.happen(on.ExperimentSubmitted, experiment="two", spec=make.spec(shards=1))
    play.happen(on.PauseAsked, experiment="one", paused=True)
    assert play.core.state.active_as("one") is not None  # until its worker has ended
    assert not of(play.publish("ann"), out.Assigned)
    assert play.core.state.active_as("two") is not None
    alone = {name: Scheduler() for name in ("one", "two")}
    for entry in play.entries:
        alone[entry.experiment].replay(play.now, entry)
    later = Scheduler()
    later.take_in([core.state.experiments[name] for name, core in alone.items()], play.now)
    paused = later.state.experiments["one"]
    assert (paused.life.state, paused.paused) == (ExperimentState.WAITING, True)
    assert later.state.active_as("two") is not None
    later.handle(on.ExperimentCancelled(at_seconds=20.0, experiment="two", reason="enough"))
    asked = later.handle(on.PauseAsked(at_seconds=21.0, experiment="one", paused=False))
    (prepare,) = [one for one in asked.commands if isinstance(one, out.Prepare)]
    assert (prepare.experiment, prepare.dataset) == ("one", "d")
    assert [key.shard for key in paused.arrived] == [0]
