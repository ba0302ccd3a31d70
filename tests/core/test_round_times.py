"""The time left of an experiment, from the rounds that have ended."""

from downpour.cluster.manager.status import summary
from downpour.core.round_times import RoundTimes
from downpour.core.scheduler import events as on
from downpour.show.tables.live import time_left
from tests.core.scheduler.stage import Play


def left(seconds: list[float], more: int) -> tuple[float, float, float] | None:
    """Return the time left after rounds that took `seconds`, with `more` rounds to come."""
    times, now = RoundTimes(), 0.0
    for each in seconds:
        times.close(now + each, now)
        now += each
    return times.left(len(seconds) + more, now)


def test_time_left_is_wide_after_two_rounds_and_narrows() -> None:
    """It grows with the rounds that are left, and says nothing before two have ended."""
    assert left([], 3) is left([10.0], 3) is None
    two, many = left([9.0, 11.0], 10), left([9.0, 11.0] * 15, 10)
    assert two is not None
    assert many is not None
    assert two[1] == many[1] == 100
    assert two[0] < many[0] < 100 < many[2] < two[2]
    assert left([9.0, 11.0], 0) == (0, 0, 0)


def test_the_status_of_a_running_experiment_says_the_time_left() -> None:
    """It falls between the ends of rounds, and none is said before two of them or at the end."""
    play = Play()
    play.join("ann")
    play.submit(10, epochs=14, evaluate_every=0)
    said = []
    for number, play.now in enumerate((68.0, 128.0, 198.0, 258.0)):
        play.publish("ann", number=number)
        play.aggregate(number)
        said.append(_said(play))
    assert said == ["", "about 13 min left (10 to 15)", said[2], "about 11 min left (10 to 12)"]
    play.happen(on.Tick, play.now + 90)
    assert _said(play) == "about 9 min left (8 to 10)"
    play.happen(on.ExperimentCancelled, experiment="one", reason="enough")
    assert _said(play) == ""
    assert time_left((110.0, 120.0, 130.0)) == "about 2 min left"


def _said(play: Play) -> str:
    experiment = play.core.state.experiments["one"]
    return time_left(summary(play.core.state, experiment).left_seconds)
