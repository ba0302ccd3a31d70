"""What `handoff` moves where to, and what it leaves alone."""

from dataclasses import replace
from math import inf

import pytest

from downpour.base.values import Forecast
from downpour.core.spec_fields import Option
from downpour.core.stragglers.base import PendingTask, RoundView, RunningTask, Speed, Waiting
from tests.core.stragglers.rounds import FAST, LATE, actions_of, decide, round_of, running, sure

STAYS = ["Waiting 3 dot"]


def test_a_late_task_goes_to_an_idle_worker_where_it_stands() -> None:
    """The reason says what was forecast and what is gained."""
    view = round_of(LATE, idle="eve", paces=FAST)
    (move,) = decide("handoff", view)
    assert actions_of("handoff", view) == ["Handoff 3 dot eve"]
    assert move.reason.startswith("forecast ")
    assert "median 10.0 s; eve would end " in move.reason


@pytest.mark.parametrize(
    ("pace", "options", "why"),
    [
        (60.0, {}, "fay would end no sooner"),
        (24.6, {}, "fay would end 0.2 s sooner, but a move must save 0.2 s"),
        (24.7, {"cost": 0.0}, "fay would end 0.1 s sooner, but a move must save 0.2 s"),
    ],
)
def test_a_late_task_that_stays_is_explained(
    pace: float, options: dict[str, Option], why: str
) -> None:
    """Users see what the round waits for, and why nothing is done."""
    paces = {"dot": 25.0, "fay": pace}
    view = round_of(LATE[3:], idle="fay", published=[10.0] * 3, paces=paces, options=options)
    (stays,) = decide("handoff", view)
    assert isinstance(stays, Waiting)
    assert stays.reason == f"forecast 25.0 s, 5.0 s elapsed; {why}"


def test_a_worker_that_publishes_keeps_its_shard() -> None:
    """The worker has trained all its steps, so `handoff` lets it publish the update."""
    late = replace(LATE[3], done=1.0, remaining=sure(2.0))
    assert not decide("handoff", round_of([*LATE[:3], late], idle="eve", paces=FAST))


def test_a_forecast_is_told_with_its_band() -> None:
    """The seconds from the assignment on, in eight cases of ten."""
    ahead = Forecast(q10=17.0, q50=20.0, q90=26.0, q98=30.0)
    late = replace(LATE[3], remaining=ahead, reported_seconds=1.0)
    view = round_of([late], idle="fay", published=[10.0] * 3, paces={"fay": 60.0})
    (stays,) = decide("handoff", view)
    assert isinstance(stays, Waiting)
    assert stays.reason.startswith("forecast 24.0 s (21.0–30.0), 5.0 s elapsed; ")


def test_a_measured_speed_brings_its_own_band() -> None:
    """The forecast said 20 s; the steps since then say 40 s, give or take a fifth."""
    ahead = Forecast(q10=17.0, q50=20.0, q90=26.0, q98=30.0)
    late = replace(LATE[3], remaining=ahead)
    view = round_of([late], idle="fay", published=[10.0] * 3, paces={"fay": 60.0})
    measured = Speed(samples_per_second=2.0, share=1.0, variance=(0.2 / 1.2816) ** 2)
    (stays,) = decide("handoff", replace(view, speeds={"dot": measured}))
    assert stays.reason.startswith("forecast 45.0 s (37.0–53.0), 5.0 s elapsed; ")


@pytest.mark.parametrize(
    ("done", "leaving_seconds", "what"),
    [
        (0.2, 0.0, "makes no step"),
        (1.0, 0.0, "publishes nothing"),
        (0.2, 4.5, "does not hand over"),
    ],
)
def test_a_stalled_workers_task_is_trained_beside_it(
    done: float, leaving_seconds: float, what: str
) -> None:
    """It cannot publish; the last snapshot is what there is."""
    stalled = replace(STALLED, done=done, leaving_seconds=leaving_seconds)
    (move,) = decide("handoff", round_of([*LATE[:3], stalled], idle="eve", paces=FAST))
    silent = max(4.0, leaving_seconds)
    assert move.reason == f"dot {what}, for {silent} s now; goes on beside it, after 10%"


def speed(samples_per_second: float, variance: float | None, share: float = 0.2) -> Speed:
    """Return how fast a worker was over a fifth of its shard."""
    return Speed(samples_per_second=samples_per_second, share=share, variance=variance)


def late_by_chance(variance: float | None, share: float = 0.2) -> RoundView:
    """Four workers at half of their shards; dot's last steps took twice as long as the others'."""
    tasks = [running(name, n, 0.5, 5.0) for n, name in enumerate(("ann", "bob", "cat", "dot"))]
    view = round_of(tasks, idle="eve", paces=FAST)
    speeds = dict.fromkeys(("ann", "bob", "cat"), speed(10.0, variance, share))
    return replace(view, speeds={**speeds, "dot": speed(5.0, variance, share)})


def standby_was_slow(age_seconds: float) -> RoundView:
    """Four workers at half of their shards, dot at a fifth; eve was slow when it last trained."""
    tasks = [running(name, n, 0.5, 5.0) for n, name in enumerate(("ann", "bob", "cat"))]
    slow = {"dot": 50.0, "eve": 50.0}
    view = round_of([*tasks, running("dot", 3, 0.1, 5.0)], idle="eve", paces={**FAST, **slow})
    speeds = dict.fromkeys(("ann", "bob", "cat"), speed(10.0, 0.0))
    old = replace(speed(2.0, 0.0), age_seconds=age_seconds)
    return replace(view, speeds={**speeds, "dot": speed(2.0, 0.0), "eve": old})


def beside(fourth: RunningTask, **paces: float) -> RoundView:
    """Three workers at half of their shards, a fourth with its own, and eve idle."""
    return round_of([*LATE[:3], fourth], idle="eve", paces={**FAST, **paces})


def given(shard: int, worker: str) -> tuple[PendingTask, ...]:
    """A shard that was handed over to a worker."""
    return (PendingTask(shard=shard, samples=100, meant_for=worker, saved=0.6),)


STALLED = running("dot", 3, 0.2, 9.0, still_seconds=4.0, saved=0.1)
CID_TOO = [*LATE[:2], running("cid", 2, 0.25), LATE[3]]
BUSY = [running("ann", 0, 0.7, 7.0), *LATE[1:]]
EXCHANGED = ["Handoff 3 dot ann", "Handoff 0 ann dot"]
MOVED = ["Handoff 3 dot eve"]
TWO = [running("ann", 0, 0.25, 2.5), running("cid", 2, 0.05, 2.5)]
FOUR = [*TWO, running("bob", 1, 0.25, 2.5), running("dot", 3, 0.25, 2.5)]
SHORT = [replace(task, elapsed_seconds=task.elapsed_seconds / 50) for task in LATE]
LONE = running("ann", 0, 0.5, 60.0, still_seconds=2.0)
ANN = running("ann", 0, 0.3, 3.0)
SIXTEEN_LEFT = beside(running("dot", 3, 0.2, 4.0))
STEADY = {task.worker: speed(task.rate * 100, 0.0) for task in BUSY}
COARSE = {**STEADY, "dot": replace(STEADY["dot"], step_seconds=12.0)}
BOB = running("bob", 3, 0.95)
ENDLESS = replace(running("dot", 0, 0.0), remaining=sure(inf))
SLOW_FAY = {"dot": 25.0, "fay": 60.0}
TO_BEGIN = round_of(
    idle="dot ann bob", pending=2, paces={**FAST, "dot": 30.0, "bob": 8.0}, standbys=1, begun=False
)

CASES = {
    "the fastest idle worker is chosen, not the one that has waited longest": (
        round_of(LATE, idle="fay eve", paces={**FAST, "fay": 15.0}),
        MOVED,
    ),
    "each late shard gets an idle worker of its own, the latest the fastest": (
        round_of(CID_TOO, idle="fay eve", paces={**FAST, "fay": 12.0}),
        [*MOVED, "Handoff 2 cid fay"],
    ),
    "one idle worker takes the latest, and the other late one exchanges": (
        round_of(CID_TOO, idle="eve", paces=FAST),
        [*MOVED, "Handoff 2 cid ann", "Handoff 0 ann cid"],
    ),
    "a promised worker takes no stalled shard, but the one that was handed over to it": (
        replace(beside(STALLED), pending=given(4, "eve")),
        ["Assignment 4 eve"],
    ),
    "busy workers exchange where none is idle: dot gets what has least left": (
        round_of(BUSY, paces=FAST),
        EXCHANGED,
    ),
    "a worker exchanges only with one that has what its shard needs": (
        replace(round_of(BUSY, paces=FAST), barred={3: frozenset({"ann"})}),
        ["Handoff 3 dot bob", "Handoff 1 bob dot"],
    ),
    "and whose shard it may train": (
        replace(round_of(BUSY, paces=FAST), barred={0: frozenset({"dot"})}),
        ["Handoff 3 dot bob", "Handoff 1 bob dot"],
    ),
    "each late shard is exchanged for another one": (
        round_of(CID_TOO, paces=FAST, published=[10.0]),
        ["Handoff 3 dot ann", "Handoff 0 ann dot", "Handoff 2 cid bob", "Handoff 1 bob cid"],
    ),
    "but not where it ends before the rest of the round, however that is divided": (
        replace(
            round_of([ENDLESS, running("ann", 1, 0.9), running("cid", 2, 0.772), BOB]),
            speeds={**dict.fromkeys(("ann", "bob"), speed(0.1, 0.0)), "cid": speed(0.04, 0.0)},
        ),
        [],
    ),
    "no busy workers exchange while shards wait: whoever is done next begins one": (
        replace(round_of(BUSY, paces=FAST), shards=5),
        [],
    ),
    "a difference in progress alone says nothing of who is faster": (
        round_of([running("ann", 0, 0.5), running("bob", 1, 0.52)]),
        [],
    ),
    "a tenth faster is not worth an exchange, however far apart they are": (
        round_of([ANN, running("bob", 1, 0.8, 8.0 / 1.1)]),
        [],
    ),
    "a fifth faster is": (
        round_of([ANN, running("bob", 1, 0.8, 8.0 / 1.2)]),
        ["Handoff 0 ann bob", "Handoff 1 bob ann"],
    ),
    "a move does not pay where hundredths of a second are left": (
        round_of(
            [running("ann", 0, 0.99, 9.9), running("dot", 1, 0.985, 12.0)], idle="eve", paces=FAST
        ),
        [],
    ),
    "sixteen seconds left are worth a move": (SIXTEEN_LEFT, MOVED),
    "also where an attempt takes two seconds beside training": (
        replace(SIXTEEN_LEFT, overhead_seconds=2.0),
        MOVED,
    ),
    "but not where it takes six": (replace(SIXTEEN_LEFT, overhead_seconds=6.0), STAYS),
    "a task of milliseconds stays: what is known of a worker is about as old as what is left": (
        round_of(SHORT, idle="eve", paces={name: pace / 50 for name, pace in FAST.items()}),
        STAYS,
    ),
    "a worker that starts is no straggler: it imports, and has nothing to hand over": (
        beside(running("dot", 3, 0.0, 0.0, is_starting=True, still_seconds=60.0), dot=60.0),
        [],
    ),
    "nothing goes to a slower worker": (
        round_of(LATE[3:], idle="fay", published=[10.0] * 3, paces=SLOW_FAY),
        STAYS,
    ),
    "but to a faster one": (
        round_of(LATE[3:], idle="fay", published=[10.0] * 3, paces={**SLOW_FAY, "fay": 10.0}),
        ["Handoff 3 dot fay"],
    ),
    "what is being handed over is left alone, and so is whom it is meant for": (
        beside(running("dot", 3, 0.2, meant_for="eve", leaving_seconds=0.1)),
        [],
    ),
    "what was moved settles first: nothing is known of it where it is now": (
        beside(running("dot", 3, 0.2, 0.5, began_at=0.2), dot=40.0),
        [],
    ),
    "what has settled can be moved again": (
        beside(running("dot", 3, 0.23, 1.5, began_at=0.2), dot=40.0),
        MOVED,
    ),
    "what went on from a snapshot is late sooner: less was left to do": (
        beside(running("dot", 3, 0.6, 3.0, began_at=0.5)),
        MOVED,
    ),
    "a worker that does not hand over in time counts as stalled": (
        beside(running("dot", 3, 0.2, 9.0, meant_for="eve", leaving_seconds=4.0)),
        ["Assignment 3 eve"],
    ),
    "an idle worker goes on beside one stalled worker at a time": (
        round_of(
            [replace(STALLED, worker="cid", shard=2), STALLED], idle="eve", published=[10.0] * 3
        ),
        ["Assignment 2 eve"],
    ),
    "no worker counts as stalled before we know how long a step takes": (
        round_of([running("ann", 0, 0.0, 9.0, still_seconds=9.0)], idle="eve"),
        [],
    ),
    "the second half of an exchange waits for a worker that still hands over": (
        replace(
            round_of(
                [*LATE[1:3], running("ann", 0, 0.7, meant_for="dot", leaving_seconds=0.1)],
                idle="dot eve",
            ),
            pending=given(3, "ann"),
        ),
        [],
    ),
    "a failed exchange leaves nothing behind: ann, whose shard dot never took, has it again": (
        replace(
            round_of(
                [*LATE[1:3], running("dot", 3, 0.2, 9.0, meant_for="ann", leaving_seconds=4.0)],
                idle="ann",
                paces=FAST,
            ),
            pending=given(0, "dot"),
        ),
        ["Assignment 0 ann"],
    ),
    "a shard meant for a worker that is busy again goes to another": (
        replace(round_of(LATE, idle="eve", paces=FAST), pending=given(4, "ann")),
        ["Assignment 4 eve"],
    ),
    "the biggest shard goes to the fastest, and the slowest stands by": (
        replace(TO_BEGIN, pending=(TO_BEGIN.pending[0], replace(TO_BEGIN.pending[1], samples=200))),
        ["Assignment 1 bob", "Assignment 0 ann"],
    ),
    "a speed of zero over a few heartbeats is what a large model shows between its steps": (
        replace(round_of([LONE], idle="eve"), speeds={"ann": speed(0.0, None, 0.1)}),
        [],
    ),
    "a worker that is steadily slower hands over": (late_by_chance(0.011), MOVED),
    # On throttled processors these moved 2.4 shards a round though all workers were alike, and a
    # first round took 4.6 s instead of 3.2 s.
    "a few slow steps are no sign of a slow worker": (late_by_chance(None, 0.04), STAYS),
    "a quarter of the usual speed is a sign, even after two steps": (
        replace(
            late_by_chance(None), speeds={**late_by_chance(None).speeds, "dot": speed(2.5, None)}
        ),
        MOVED,
    ),
    "single steps that differ much are none": (late_by_chance(0.015), STAYS),
    "no worker is taken to be steadier than all are on average: that may be chance as well": (
        replace(
            late_by_chance(0.08), speeds={**late_by_chance(0.08).speeds, "dot": speed(5.0, 0.0)}
        ),
        STAYS,
    ),
    "a standby that was slow long ago is given another try, or it would stand by for ever": (
        standby_was_slow(60.0),
        MOVED,
    ),
    "but begins no shard: that it is fast again is only hoped, and known of the others": (
        replace(
            standby_was_slow(60.0),
            running=(),
            idle=("eve", "ann", "bob", "cat"),
            pending=round_of(pending=3).pending,
            begun=False,
            standbys=1,
        ),
        ["Assignment 0 ann", "Assignment 1 bob", "Assignment 2 cat"],
    ),
    "of two workers, each has a shard for half of the round: one exchange is enough": (
        round_of(TWO),
        [],
    ),
    "of four, a slow one hands over sooner": (
        round_of(FOUR),
        ["Handoff 2 cid ann", "Handoff 0 ann cid"],
    ),
    "an exchange is worth three seconds beside training": (
        replace(round_of(BUSY, paces=FAST), overhead_seconds=3.0),
        EXCHANGED,
    ),
    "but not more, as both attempts are loaded and published once more": (
        replace(round_of(BUSY, paces=FAST), overhead_seconds=3.5),
        [],
    ),
    "steady workers exchange": (replace(round_of(BUSY), speeds=STEADY), EXCHANGED),
    "but not where the other one stands still until a long step of the slow one is over": (
        replace(round_of(BUSY), speeds=COARSE),
        [],
    ),
    "that an unknown worker is fast is a guess: what is a little late stays": (
        round_of([*LATE[:3], running("dot", 3, 0.42)], idle="eve"),
        STAYS,
    ),
    "where it is known to be fast, that is moved": (beside(running("dot", 3, 0.42)), MOVED),
    "what is far behind is worth the try": (round_of(LATE, idle="eve"), MOVED),
}


@pytest.mark.parametrize(("view", "actions"), CASES.values(), ids=list(CASES))
def test_tasks_move_or_stay(view: RoundView, actions: list[str]) -> None:
    """Each case says why."""
    assert actions_of("handoff", view) == actions


def test_a_standby_that_was_slow_just_now_takes_nothing() -> None:
    """It would be no sooner; so dot, who is as slow, exchanges with the others."""
    assert "Handoff 3 dot eve" not in actions_of("handoff", standby_was_slow(0.5))
