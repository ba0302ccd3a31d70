"""A process that is slowed gets its share of the time, whatever the thread that slows it does."""

import subprocess
import sys
from collections.abc import Iterator
from threading import Event

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from downpour.cluster.disturbances import STILL_SECONDS_MAX, DutyCycle, Slow, Slowing

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

    def nobody(name: str) -> None:
        assert name == "worker-1"
        asked.set()

    slowing = Slowing(Slow(who="worker-1", speed=0.5), nobody)
    assert asked.wait(30.0)
    slowing.close()
