"""Partitions, told one by one: what a seed may bring in any order, with what must come of it."""

from __future__ import annotations

from dataclasses import replace

from downpour.base.errors import SharedDirectoryError
from downpour_lab.simulated.environment import Timings
from downpour_lab.simulated.manager import SimulatedManager
from downpour_lab.trials.faults import Fault, FaultKind
from downpour_lab.trials.plan import Plan, plan_of
from downpour_lab.trials.promises import Promise
from downpour_lab.trials.simulation import simulate
from tests.specs import plain_spec


def plan_with(*faults: Fault) -> Plan:
    """Return a plan of two managers, two workers and one experiment."""
    return replace(
        plan_of(1, swarm=False),
        specs=(("e", plain_spec(shards=4, epochs=3, retries=3)),),
        managers=("manager-a", "manager-b"),
        workers=("worker-1", "worker-2"),
        timings=Timings(task_seconds=4.0),
        faults=faults,
    )


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
