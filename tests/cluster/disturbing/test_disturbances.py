"""What `--slow` and `--kill` ask for, and how a process is slowed."""

import subprocess
import sys
from collections.abc import Iterator
from threading import Event

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from downpour.base.errors import SpecError
from downpour.cluster.disturbances import (
    STILL_SECONDS_MAX,
    Disturbances,
    DutyCycle,
    Kill,
    Pauses,
    Slow,
    Slowing,
)

TENTHS = st.integers(1, 99).map(lambda number: number / 100)


def test_both_forms_of_python_and_of_the_command_line_mean_the_same() -> None:
    """A mapping has numbers or texts; the command line has texts alone."""
    pauses = Pauses(still_seconds=6, every_seconds=10)
    expected = (Slow(who="worker-1", speed=0.5), Slow(who="worker-3", speed=0.25, pauses=pauses))
    mapping = {"worker-1": 0.5, "worker-3": "0.25,pauses=6/10"}
    assert Disturbances.of(mapping).slow == expected
    assert Disturbances.of(["worker-1=0.5", "worker-3=0.25,pauses=6/10"]).slow == expected


def test_a_kill_is_read_from_one_word() -> None:
    """A worker stays away unless it is said to start again; the manager always restarts."""
    kills = Disturbances.of(None, ["worker-2@round3", "worker-1@2.5s,restart", "manager@20s"]).kill
    assert kills == (
        Kill(who="worker-2", round=3),
        Kill(who="worker-1", seconds=2.5, again=True),
        Kill(who="manager", seconds=20.0),
    )
    assert [kill.comes_back for kill in kills] == [False, True, True]


@given(speed=TENTHS, still=TENTHS, more=TENTHS)
def test_the_text_of_a_slow_worker_reads_back_as_the_same(
    speed: float, still: float, more: float
) -> None:
    """So a refusal shows what can be typed."""
    pauses = Pauses(still_seconds=still, every_seconds=round(still + more, 2))
    slow = Slow(who="worker-1", speed=speed, pauses=pauses)
    assert Disturbances.of([str(slow)]).slow == (slow,)


@given(number=st.integers(1, 10**6), seconds=TENTHS, again=st.booleans())
def test_the_text_of_a_kill_reads_back_as_the_same(
    number: int, seconds: float, *, again: bool
) -> None:
    """At a round, or after seconds."""
    for kill in (
        Kill(who="worker-1", round=number, again=again),
        Kill(who="worker-1", seconds=seconds, again=again),
    ):
        assert Kill.of(str(kill)) == kill


@pytest.mark.parametrize(
    ("slow", "kill", "line"),
    [
        ("worker-1", (), "slow = 'worker-1=': must be WORKER=SPEED"),
        ("=0.5", (), "slow = '=0.5': must be WORKER=SPEED"),
        ("worker-1=fast", (), "slow = 'worker-1=fast': must be WORKER=SPEED"),
        ("worker-1=nan", (), "slow = 'worker-1=nan': must be WORKER=SPEED"),
        ("worker-1=0", (), "slow = 'worker-1=0': SPEED must be above 0 and at most 1"),
        ("worker-1=1.5", (), "slow = 'worker-1=1.5': SPEED must be above 0 and at most 1"),
        ("worker-1=-1", (), "slow = 'worker-1=-1': SPEED must be above 0 and at most 1"),
        ("worker-1=1", (), "slow = 'worker-1=1': SPEED must be below 1"),
        ("worker-1=0.5,", (), "slow = 'worker-1=0.5,': must be WORKER=SPEED"),
        ("worker-1=0.5,pauses=6", (), "slow = 'worker-1=0.5,pauses=6': must be WORKER=SPEED"),
        ("worker-1=0.5,pauses=x/9", (), "must be WORKER=SPEED"),
        ("worker-1=0.5,pauses=9/9", (), "above 0 s and shorter than its interval"),
        ("worker-1=0.5,pauses=0/9", (), "above 0 s and shorter than its interval"),
        (["worker-1=0.5", "worker-1=0.2"], (), "slow = 'worker-1': appears twice"),
        (3, (), "slow = 3: must be WORKER=SPEED"),
        ([3], (), "slow = [3]: must be WORKER=SPEED"),
        ({"worker-1": None}, (), "slow = 'worker-1=None': must be WORKER=SPEED"),
        ((), "worker-1", "kill = 'worker-1': must be WHO@roundN or WHO@SECONDSs"),
        ((), "worker-1@3", "kill = 'worker-1@3': must be WHO@roundN"),
        ((), "@3s", "kill = '@3s': must be WHO@roundN"),
        ((), "worker-1@1.2.3s", "kill = 'worker-1@1.2.3s': must be WHO@roundN"),
        ((), "worker-1@round-1", "kill = 'worker-1@round-1': must be WHO@roundN"),
        ((), "manager@round1,restart", "the manager always restarts"),
        ((), 3, "kill = 3: must be WHO@roundN"),
        ((), [3], "kill = [3]: must be WHO@roundN"),
    ],
)
def test_unreadable_disturbances_are_refused_in_one_line(
    slow: object, kill: object, line: str
) -> None:
    """It names the option, what was given and what is accepted."""
    with pytest.raises(SpecError) as refused:
        Disturbances.of(slow, kill)
    assert line in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("slow", "kill", "line"),
    [
        ("worker-3=0.5", (), "slow = 'worker-3=0.5': WHO must be worker-1 to worker-2"),
        ("manager=0.5", (), "slow = 'manager=0.5': WHO must be worker-1 to worker-2"),
        ((), "worker-0@1s", "kill = 'worker-0@1s': WHO must be manager or worker-1 to worker-2"),
        ((), "manager@round0", "kill = 'manager@round0': this run has at most 4 rounds"),
        ((), "worker-1@round5", "kill = 'worker-1@round5': this run has at most 4 rounds"),
        ((), ["worker-1@1s", "worker-2@1s"], "kill = 'worker-2@1s': leaves no worker"),
    ],
)
def test_workers_and_rounds_beyond_the_run_are_refused(
    slow: object, kill: object, line: str
) -> None:
    """Workers beyond those that start, rounds beyond the last, and the death of all workers."""
    with pytest.raises(SpecError) as refused:
        Disturbances.of(slow, kill).check(workers=2, rounds=4, is_local=True)
    assert line in str(refused.value)


@pytest.mark.parametrize(("slow", "kill"), [("worker-1=0.5", ()), ((), "manager@1s")])
def test_only_processes_of_this_machine_are_disturbed(slow: object, kill: object) -> None:
    """Those of another launcher are not this command's; without disturbances any launcher will do.

    Killing the manager of threads in this process would end the process.
    """
    with pytest.raises(SpecError, match="needs --on local"):
        Disturbances.of(slow, kill).check(workers=2, rounds=4, is_local=False)
    Disturbances.of().check(workers=2, rounds=4, is_local=False)


def test_workers_may_die_as_long_as_one_is_left_or_starts_again() -> None:
    """The cluster goes on with the one that is left."""
    Disturbances.of(None, ["worker-1@1s"]).check(workers=2, rounds=4, is_local=True)
    both = Disturbances.of(None, ["worker-1@1s", "worker-2@1s,restart"])
    both.check(workers=2, rounds=4, is_local=True)


LATE = st.floats(0.0, 0.02)


@given(speed=st.floats(0.05, 0.95), late=st.lists(st.tuples(LATE, LATE), min_size=200))
def test_a_thread_that_wakes_late_makes_up_for_it(
    speed: float, late: list[tuple[float, float]]
) -> None:
    """After many stretches the process has run for its share of the time, within a stretch."""
    cycle, ran, stood = DutyCycle(speed), 0.0, 0.0
    for run_late, stand_late in late:
        run = cycle.run_seconds + run_late
        cycle.ran(run)
        still = cycle.still_seconds + (stand_late if cycle.still_seconds else 0.0)
        cycle.stood(still)
        ran, stood = ran + run, stood + still
    assert ran / (ran + stood) == pytest.approx(speed, rel=0.05)


@given(speed=st.floats(0.001, 0.999))
def test_a_stop_is_short_enough_for_heartbeats(speed: float) -> None:
    """However slow the process is, and also after a night in which the laptop slept."""
    cycle = DutyCycle(speed)
    cycle.ran(cycle.run_seconds)
    assert 0 < cycle.still_seconds <= STILL_SECONDS_MAX * 1.001
    cycle.ran(8 * 3600.0)
    assert cycle.still_seconds <= STILL_SECONDS_MAX


@pytest.fixture
def busy() -> Iterator[psutil.Process]:
    """A process that computes without end, and leads a session as workers do."""
    command = [sys.executable, "-c", "while True: pass"]
    with subprocess.Popen(command, start_new_session=True) as process:
        yield psutil.Process(process.pid)
        process.kill()


@pytest.mark.slow
def test_a_slowed_process_computes_less_and_is_free_again_afterwards(busy: psutil.Process) -> None:
    """At a tenth it gets far less than half of what it gets without, on any machine."""

    def computed() -> float:
        before = sum(busy.cpu_times()[:2])
        Event().wait(3.0)
        return sum(busy.cpu_times()[:2]) - before

    slowing = Slowing(Slow(who="worker-1", speed=0.1), {"worker-1": busy.pid}.get)
    slowly = computed()
    slowing.close()
    assert busy.status() != psutil.STATUS_STOPPED
    assert slowly < computed() / 2


def test_a_worker_that_is_not_there_is_left_alone() -> None:
    """Another process may take its place later."""
    asked = Event()

    def no_process(name: str) -> None:
        assert name == "worker-1"
        asked.set()

    slowing = Slowing(Slow(who="worker-1", speed=0.5), no_process)
    assert asked.wait(30.0)
    slowing.close()
