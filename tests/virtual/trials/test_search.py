"""Thousands of clusters with faults: all checks hold, and planted defects are found."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from downpour.core.node.step_loop import StepLoop
from downpour.core.node.worker import WorkerNode
from downpour.core.spec import ResolvedSpec
from downpour.core.stragglers import POLICIES
from downpour.virtual.faults.faults import Fault, FaultKind
from downpour.virtual.faults.plan import plan_of
from downpour.virtual.simulated.environment import Timings
from downpour.virtual.simulated.manager import SimulatedManager
from downpour.virtual.trials.seed_search import outcomes, shrunken
from downpour.virtual.trials.simulation import simulate
from tests.core.node import defects as worker_defects
from tests.core.node import loop_defects
from tests.virtual.trials import async_defects, defects
from tests.virtual.trials.seeds import seeds_with

SEEDS_FOR_A_DEFECT = 600


def failing_seed(
    manager_class: type[SimulatedManager], sentence: str, faults: tuple[FaultKind, ...] = ()
) -> int:
    """Return the first seed that has these faults, and with which a manager fails so."""
    for outcome in outcomes(seeds_with(*faults, number=SEEDS_FOR_A_DEFECT), manager_class):
        if sentence in outcome.failure:
            return outcome.plan.seed
    pytest.fail("the defect was not found")


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "seeds",
    [
        range(150),
        [3_025_303],  # a lost end of a journal, and an update of another share of the steps
        [4_011_057],  # an optimizer state whose publication seemed to fail, and a cancellation
        pytest.param(range(1_500), marks=pytest.mark.slow),
        pytest.param(range(1_500, 3_000), marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_whatever_goes_wrong_every_run_ends_as_if_nothing_had(seeds: Sequence[int]) -> None:
    """No shard is lost or counted twice, and the last model is that of a run without faults."""
    failures = {o.plan.seed: o.failure for o in outcomes(seeds) if o.failure}
    assert failures == {}


@pytest.mark.parametrize(
    ("manager_class", "sentence"),
    [
        (defects.ActsBeforeItKeeps, "is running"),
        (defects.ForgetsAssignments, "gives another state"),
        (defects.NeverResigns, "in the time of a later one"),
        (defects.ActsWithoutLeading, "in the time of a later one"),
        (defects.ForgetsToKeep, "gives another state"),
        (defects.TakesASecondUpdate, "is one too many"),
        (defects.FoldsInAnotherOrder, "folds"),
        (defects.TrainsFromAnOldModel, "is not what it should be"),
        (defects.NeverPublishes, "does not end"),
        (defects.KeepsTheLastForTheBest, "has kept another model than its best"),
        (defects.RunsAhead, "but something of it goes on"),
        (defects.LeavesFiles, "are left over"),
        (defects.ForgetsTheOuterState, "is another one"),
        (defects.ForgetsTheBusy, "which does not run it"),
        (defects.FoldsWhatIsDropped, "folds"),
        (defects.CountsTheAbsentIn, "and is not registered"),
        (defects.BlamesWhoComesBack, "costs a retry"),
        (async_defects.ForgetsTheBase, "is not what it should be"),
        (async_defects.DecidesSharesAnew, "% of shard"),
        (async_defects.BeginsFromTheCentre, "is not what it should be"),
        (async_defects.IgnoresTheBound, "open rounds, more than"),
        (async_defects.CountsStaleAsFresh, "is not what it should be"),
        (async_defects.HasNoGrace, "before its grace window is over"),
        (async_defects.EndsRoundsEarly, "ends with 1 of"),
        (async_defects.LosesPushes, "have arrived, its tasks say"),
    ],
)
def test_a_defect_is_found_by_the_check_that_is_there_for_it(
    manager_class: type[SimulatedManager], sentence: str
) -> None:
    """Some hundred seeds are enough for each, and the sentence says what is wrong."""
    plan = plan_of(failing_seed(manager_class, sentence))
    assert not simulate(plan).failure, "it is the defect's, and not the seed's"


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("manager_class", "sentence", "faults"),
    [
        (defects.BuildsOnSand, "is forgotten", [FaultKind.MANAGER_MACHINE_DIES]),
        (defects.RefusesByPlace, "KeyError", [FaultKind.UPDATE_DAMAGED]),
        (defects.TakesCopies, "KeyError", [FaultKind.DAMAGED_MEANWHILE]),
        (defects.EndsWithOneJournal, "does not end", [FaultKind.DAMAGED_MEANWHILE]),
        (defects.BlamesWorkers, "is whole, and refused", [FaultKind.DISK_REFUSES]),
        (defects.FailsWithTheDirectory, "the directory refuses", [FaultKind.DISK_REFUSES]),
        (
            defects.BelievesItIsKept,
            ", and is forgotten",
            [FaultKind.DISK_REFUSES, FaultKind.MANAGER_DIES],
        ),
        (
            defects.DecidesWhileItReads,
            "no step 'drop' from 'dropped'",
            [FaultKind.MANAGER_DIES, FaultKind.UPDATE_DAMAGED],
        ),
    ],
)
def test_a_rare_defect_is_found_where_its_faults_are(
    manager_class: type[SimulatedManager], sentence: str, faults: list[FaultKind]
) -> None:
    """Some hundred seeds that have the faults it takes are enough for each."""
    plan = plan_of(failing_seed(manager_class, sentence, tuple(faults)))
    assert not simulate(plan).failure, "it is the defect's, and not the seed's"


@pytest.mark.parametrize(
    ("worker_node", "sentence"),
    [
        (worker_defects.DropsReports, "held, and not mentioned"),
        (worker_defects.NeverFree, "was not asked for last"),
        (worker_defects.MentionsWhatItBegan, "held, and not mentioned"),
        (worker_defects.MentionsNothing, "held, and not mentioned"),
        (worker_defects.NeverStops, "though it is to stop"),
        (worker_defects.GoesOnUnwanted, "though it is to stop"),
        (worker_defects.BeginsAnew, "is stopped without being asked to"),
        (worker_defects.StaysWithItsManager, "does not end"),
        (worker_defects.NeverRegistersAnew, "does not end"),
    ],
)
def test_a_defect_of_a_workers_node_is_found(
    worker_node: type[WorkerNode[Any]], sentence: str
) -> None:
    """Defects that a seed shows soon; real workers show the others (`tests/cluster/worker`)."""
    for outcome in outcomes(range(SEEDS_FOR_A_DEFECT), worker_node=worker_node):
        if sentence in outcome.failure:
            assert not simulate(outcome.plan).failure, "it is the defect's, and not the seed's"
            return
    pytest.fail("the defect was not found")


@pytest.mark.parametrize(
    ("step_loop", "sentence"),
    [
        (loop_defects.NeverStops, "is trained on, though it is to stop"),
        (loop_defects.NeverHandsOver, "is trained on, though it is to be saved"),
        (loop_defects.StopsWhatItShouldSave, "and its steps are not saved"),
        (loop_defects.SavesWhatIsCancelled, "is saved, though it is to stop"),
        (loop_defects.SavesBeforeItWasHeard, "is saved again before its manager has heard"),
        (loop_defects.FinishesEarly, "ends before its last step"),
    ],
)
def test_a_defect_of_the_loop_between_steps_is_found(
    step_loop: type[StepLoop], sentence: str
) -> None:
    """All but `NeverSaves`, which costs time alone; real workers show it (`cluster/worker`)."""
    for outcome in outcomes(range(SEEDS_FOR_A_DEFECT), step_loop=step_loop):
        if sentence in outcome.failure:
            assert not simulate(outcome.plan).failure, "it is the defect's, and not the seed's"
            return
    pytest.fail("the defect was not found")


def test_a_failing_plan_shrinks_to_the_faults_that_it_takes() -> None:
    """No fault that remains can be left out, and the one that the defect needs is there."""
    seed = failing_seed(defects.NeverResigns, "in the time of a later one")
    plan = shrunken(plan_of(seed), defects.NeverResigns)
    assert simulate(plan, defects.NeverResigns).failure
    numbers = {fault.number for fault in plan.faults}
    assert 0 < len(numbers) < len(plan_of(seed).faults)
    for number in numbers:
        assert not simulate(plan.with_faults(numbers - {number}), defects.NeverResigns).failure
    assert FaultKind.LOCK_LOST in {fault.kind for fault in plan.faults}


def test_a_plan_that_does_not_fail_is_not_shrunken() -> None:
    """There is nothing to shrink."""
    plan = plan_of(1)
    assert shrunken(plan) == plan


def test_a_seed_tells_the_same_story_every_time() -> None:
    """Also in another process, with other hashes."""
    story = simulate(plan_of(8), story=True).story
    assert simulate(plan_of(8), story=True).story == story
    words = [sys.executable, "-m", "downpour.cli", "simulate", "--seed", "8", "--story"]
    for hashes in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": hashes, "PYTHONPATH": ":".join(sys.path)}
        told = subprocess.run(words, env=environment, capture_output=True, text=True, check=True)
        assert tuple(told.stdout.splitlines()) == story


def test_a_dead_worker_is_missed_when_its_connections_end() -> None:
    """Its attempt is given up at once, and not after four seconds of silence."""
    died = Fault(number=1, at_seconds=3.0, kind=FaultKind.WORKER_DIES, target="worker-1")
    plan = replace(
        plan_of(1),
        specs=(("e", ResolvedSpec(shards=4, epochs=1, retries=3)),),
        workers=("worker-1",),
        timings=Timings(task_seconds=30.0, spread=0.0, worker_spread=0.0),
        faults=(replace(died, seconds=9.0),),
    )
    outcome = simulate(plan, story=True)
    assert not outcome.failure
    [missed] = [line for line in outcome.story if "is given up" in line]
    assert "its connection ended and it does not answer" in missed
    assert 3.0 < float(missed.split()[0]) < 3.2


def test_seeds_differ() -> None:
    """In experiments, processes and faults; together they have every kind of fault."""
    plans = [plan_of(seed) for seed in range(300)]
    assert len({plan.faults for plan in plans}) == len(plans)
    assert {1, 2, 3, 4} < {len(plan.workers) for plan in plans}
    assert {fault.kind for plan in plans for fault in plan.faults} == set(FaultKind)
    assert {spec.policy for plan in plans for _, spec in plan.specs} == set(POLICIES)
