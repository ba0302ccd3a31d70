"""Thousands of clusters with faults: all checks hold, and planted defects are found."""

import gc
import logging
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest
from greenlet import getcurrent, greenlet

from downpour.base.errors import SharedDirectoryError
from downpour.cluster.manager.command_runner import log
from downpour.core.scheduler import invariants, queue
from downpour.core.stragglers.base import POLICIES
from downpour_lab.simulated.environment import Timings
from downpour_lab.simulated.manager import SimulatedManager
from downpour_lab.trials.faults import Fault, FaultKind
from downpour_lab.trials.plan import Plan, plan_of
from downpour_lab.trials.promises import Promise
from downpour_lab.trials.simulation import shrunken, simulate
from tests.downpour_lab.trials import defects
from tests.downpour_lab.trials.planted import PLANTED, RARE, Planted, overlapping, stepping
from tests.specs import plain_spec

SEEDS_FOR_A_DEFECT = 600
SLOW = pytest.mark.slow


@pytest.fixture(autouse=True)
def _whole_more_often(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """In plans of steps every third version is whole, because these experiments have few."""
    if "stepping" in request.node.name:
        for module in (queue, invariants):
            monkeypatch.setattr(module, "WHOLE_EVERY", 3)


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("plan", "seeds"),
    [
        (plan_of, range(60)),
        pytest.param(plan_of, range(60, 150), marks=SLOW),
        *(pytest.param(plan_of, range(n, n + 570), marks=SLOW) for n in range(150, 3_000, 570)),
        (overlapping, range(20)),
        pytest.param(overlapping, range(20, 530), marks=SLOW),
        pytest.param(overlapping, range(530, 1_000), marks=SLOW),
        (stepping, range(20)),
        pytest.param(stepping, range(20, 400), marks=SLOW),
    ],
    ids=lambda value: getattr(value, "__name__", str(value)),
)
def test_whatever_goes_wrong_every_run_ends_as_if_nothing_had(
    plan: Callable[[int], Plan], seeds: Sequence[int]
) -> None:
    """No shard is lost or counted twice, and the last model is that of a run without faults.

    Where rounds overlap, a task begins from what follows from its number, and never from what is
    there first. Steps are read by workers and managers that have the version before, or have not.
    """
    failures = {n: failure for n in seeds if (failure := simulate(plan(n)).failure)}
    assert failures == {}


@pytest.mark.slow
def test_a_run_that_has_ended_leaves_no_thread() -> None:
    """Each suspended one would keep a whole cluster in memory, and a search runs thousands."""

    def threads() -> set[int]:
        gc.collect()
        # `isinstance` asks an object for its class, and deprecated ones of torch then warn.
        suspended = (one for one in gc.get_objects() if issubclass(type(one), greenlet) and one)
        return {id(one) for one in suspended} - {id(getcurrent())}

    before = threads()
    assert not simulate(plan_of(11)).failure
    assert threads() <= before


@pytest.mark.parametrize(
    "seed",
    [
        3_025_303,  # a lost end of a journal, and an update of another share of the steps
        4_011_057,  # an optimizer state whose publication seemed to fail, and a cancellation
    ],
)
def test_what_has_failed_before_there_were_swarms_does_not_fail(seed: int) -> None:
    """Their plans stay as they were."""
    assert not simulate(plan_of(seed, swarm=False)).failure


@pytest.mark.parametrize(
    "seed",
    [
        3_388,  # a manager that stood still while it took over removed a later leader's files
        9_263,  # the only worker with a needed label had other code
        6_942,  # a shard lost three attempts at once, of which the last cost its last retry
        4_109,  # a worker that was cut off published a snapshot after its experiment had ended
        4_301,  # two workers had the same attempt at an audited task
    ],
)
def test_a_seed_that_long_searches_found_does_not_fail(seed: int) -> None:
    """They are beyond the seeds of `make test`."""
    assert not simulate(plan_of(seed)).failure


def test_every_promise_has_a_planted_defect_that_breaks_it() -> None:
    """Else nobody knows whether its check can fail."""
    assert {each.promise for each in PLANTED} == set(Promise)


def find(planted: Planted) -> Plan:
    """Look for a planted defect, and see that its plan is well without it."""
    for plan in planted.plans(SEEDS_FOR_A_DEFECT):
        outcome = simulate(plan, **planted.how())
        if outcome.failure and planted.sentence in outcome.failure:
            assert outcome.broken is planted.promise
            assert not simulate(plan).failure, "it is the defect's, and not the seed's"
            return plan
    pytest.fail("the defect was not found")


@pytest.mark.parametrize("planted", PLANTED, ids=str)
def test_a_defect_is_found_by_the_check_that_is_there_for_it(planted: Planted) -> None:
    """Some hundred seeds are enough for each, and the sentence says what is wrong."""
    find(planted)


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("planted", RARE, ids=str)
def test_a_rare_defect_is_found_where_its_faults_are(planted: Planted) -> None:
    """Some hundred seeds that have the faults it takes are enough for each."""
    find(planted)


@pytest.mark.slow
def test_a_failing_plan_shrinks_to_the_faults_that_it_takes() -> None:
    """No fault that remains can be left out, and the one that the defect needs is there."""
    whole = find(Planted(defects.NeverResigns, "in the time of a later one", Promise.LEADS))
    plan = shrunken(whole, defects.NeverResigns)
    assert simulate(plan, defects.NeverResigns).failure
    numbers = {fault.number for fault in plan.faults}
    assert 0 < len(numbers) < len(whole.faults)
    for number in numbers:
        assert not simulate(plan.with_faults(numbers - {number}), defects.NeverResigns).failure
    assert FaultKind.LOCK_LOST in {fault.kind for fault in plan.faults}


def test_a_plan_that_does_not_fail_is_not_shrunken() -> None:
    """There is nothing to shrink."""
    plan = plan_of(1)
    assert shrunken(plan) == plan


@pytest.mark.slow
def test_a_seed_tells_the_same_story_every_time() -> None:
    """Also in another process, with other hashes."""
    story = simulate(plan_of(8), story=True).story
    assert simulate(plan_of(8), story=True).story == story
    words = [sys.executable, "-m", "downpour", "simulate", "--seed", "8", "--story"]
    for hashes in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": hashes, "PYTHONPATH": ":".join(sys.path)}
        told = subprocess.run(words, env=environment, capture_output=True, text=True, check=True)
        assert tuple(told.stdout.splitlines()) == story


def plan_with(*faults: Fault, **fields: Any) -> Plan:
    """Return a plan of two managers, two workers and one experiment."""
    plain: dict[str, Any] = {
        "specs": (("e", plain_spec(shards=4, epochs=3, retries=3)),),
        "managers": ("manager-a", "manager-b"),
        "workers": ("worker-1", "worker-2"),
        "timings": Timings(task_seconds=4.0),
    }
    return replace(plan_of(1, swarm=False), faults=faults, **{**plain, **fields})


def how_missed(kind: FaultKind, seconds: float) -> tuple[float, str]:
    """Let the only worker go after three seconds; returns when it is given up, and why."""
    gone = Fault(number=1, at_seconds=3.0, kind=kind, target="worker-1", seconds=seconds)
    timings = Timings(task_seconds=30.0, spread=0.0, worker_spread=0.0)
    outcome = simulate(plan_with(gone, workers=("worker-1",), timings=timings), story=True)
    assert not outcome.failure
    [missed, *_] = [line for line in outcome.story if "is given up" in line]
    return float(missed.split()[0]), missed


def test_a_dead_worker_is_missed_when_its_connections_end() -> None:
    """Its attempt is given up at once, and not after four seconds of silence."""
    at_seconds, why = how_missed(FaultKind.WORKER_DIES, seconds=9.0)
    assert "its connection ended and worker-1:0 does not answer" in why
    assert 3.0 < at_seconds < 3.2


def test_a_machine_that_dies_is_missed_by_its_silence_alone() -> None:
    """Its connections do not end, so its attempt is given up after seconds."""
    at_seconds, why = how_missed(FaultKind.WORKER_MACHINE_DIES, seconds=90.0)
    assert "no heartbeat for" in why
    assert at_seconds > 4.0


def test_a_successor_leads_while_the_isolated_leader_lives() -> None:
    """The lock's lease ends, and the run is as if nothing had happened."""
    isolated = Fault(
        number=1, at_seconds=4.0, kind=FaultKind.MANAGER_ISOLATED, target="manager-a", seconds=25.0
    )
    outcome = simulate(plan_with(isolated), story=True)
    assert not outcome.failure
    told = [line.split("  ", 1)[1].strip() for line in outcome.story]
    leads = [n for n, line in enumerate(told) if "manager-b leads, term 2" in line]
    assert leads
    assert not any("manager-a dies" in line for line in told[: leads[0]])


REPLACED_UNSEEN = (
    Fault(
        number=1,
        at_seconds=3.5,
        kind=FaultKind.DISK_REFUSES,
        detail="EIO list manager-a",
        seconds=15.0,
    ),
    Fault(number=2, at_seconds=4.0, kind=FaultKind.LOCK_LOST, seconds=1.0),
)


class ActsInDoubt(SimulatedManager):
    """Acts where it cannot see whether another manager leads."""

    def leads(self) -> bool:
        """Believe that no news is good news."""
        try:
            return super().leads()
        except SharedDirectoryError:
            return True


def test_a_manager_that_cannot_see_its_successor_does_not_act() -> None:
    """It can write its journal, which is void since its successor's first line."""
    plan = plan_with(*REPLACED_UNSEEN)
    assert not simulate(plan).failure
    outcome = simulate(plan, ActsInDoubt)
    assert outcome.broken is Promise.LEADS


def test_a_simulation_silences_only_itself(caplog: pytest.LogCaptureFixture) -> None:
    """Another thread of the process is heard meanwhile, and this one afterwards."""
    caplog.set_level(logging.INFO, "downpour")

    class Talkative(SimulatedManager):
        """A manager that logs, while another thread does so, too."""

        def start(self) -> None:
            log.warning("the simulated manager begins")
            with ThreadPoolExecutor() as another:
                another.submit(log.warning, "another thread").result()
            super().start()

    simulate(plan_of(5), Talkative)
    log.warning("afterwards")
    assert set(caplog.messages[:-1]) == {"another thread"}
    assert caplog.messages[-1] == "afterwards"


def test_seeds_differ() -> None:
    """In experiments, processes and faults; together they have every kind of fault."""
    plans = [plan_of(seed) for seed in range(300)]
    assert len({plan.faults for plan in plans}) == len(plans)
    assert {1, 2, 3, 4} < {len(plan.workers) for plan in plans}
    assert {fault.kind for plan in plans for fault in plan.faults} == set(FaultKind)
    assert {spec.policy for plan in plans for _, spec in plan.specs} == set(POLICIES)


def test_swarms_differ_in_kinds_numbers_and_strength() -> None:
    """Most leave most kinds out; together they have all, and each of them weakly and strongly."""
    plans = [plan_of(seed, swarm=True) for seed in range(600)]
    faults = [fault for plan in plans for fault in plan.faults]
    assert {fault.kind for fault in faults} == set(FaultKind)
    kinds = [len({fault.kind for fault in plan.faults}) for plan in plans]
    assert sorted(kinds)[len(kinds) // 2] < len(FaultKind) / 4
    assert max(len(plan.faults) for plan in plans) > 20
    seconds = [fault.seconds for fault in faults]
    assert min(seconds) < 0.3
    assert max(seconds) > 120
    for kind in (FaultKind.DISK_SLOW, FaultKind.HOST_FAR, FaultKind.CLOCK_JUMPS):
        amounts = [fault.amount for fault in faults if fault.kind is kind]
        assert max(amounts) > 10 * min(map(abs, amounts))


def test_a_seed_has_one_plan() -> None:
    """Whatever was drawn before it."""
    assert [plan_of(seed) for seed in (3, 5, 3)] == [plan_of(3), plan_of(5), plan_of(3)]


def test_a_file_that_takes_half_an_hour_is_waited_for() -> None:
    """A worker reports each part that it has written, so it does not count as standing still."""
    plan = plan_of(7)
    ((name, spec), *_) = plan.specs
    minutes = 1250.0 / plan.timings.disk.write_seconds
    slow = Fault(
        number=1,
        at_seconds=0.1,
        kind=FaultKind.HOST_THROTTLED,
        target=plan.workers[0],
        seconds=2000.0,
        amount=minutes,
    )
    disk = replace(plan.timings.disk, read_seconds=0.0)
    alone = replace(
        plan,
        specs=((name, spec.replace(epochs=1, shards=1)),),
        managers=plan.managers[:1],
        workers=plan.workers[:1],
        timings=replace(plan.timings, snapshot_seconds=0.0, disk=disk),
        faults=(slow,),
    )
    outcome = simulate(alone)
    assert (outcome.failure, outcome.happened["fact", "GivenUp"]) == ("", 0)
    assert outcome.seconds > 600.0, "longer than a worker may stand still"
