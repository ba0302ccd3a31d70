"""Clusters with faults whose versions are steps: all checks hold, and planted defects are found."""

from __future__ import annotations

from dataclasses import replace

import pytest

from downpour.core.scheduler import Scheduler, invariants, queue
from downpour_lab.trials.plan import Plan, plan_of
from downpour_lab.trials.simulation import simulate
from tests.downpour_lab.trials import steps_defects
from tests.downpour_lab.trials.planted import with_core

EACH = 3
"""Every third version is whole here, because these experiments have few."""


@pytest.fixture(autouse=True)
def _whole_more_often(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (queue, invariants):
        monkeypatch.setattr(module, "WHOLE_EVERY", EACH)


def stepping(seed: int) -> Plan:
    """Return the plan of a seed with every experiment's versions published as steps."""
    plan = plan_of(seed)
    return replace(
        plan,
        specs=tuple(
            (name, spec.replace(model_compression="int3") if spec.mode != "easgd" else spec)
            for name, spec in plan.specs
        ),
    )


@pytest.mark.timeout(300)
@pytest.mark.parametrize("seeds", [range(20), pytest.param(range(20, 400), marks=pytest.mark.slow)])
def test_whatever_goes_wrong_every_version_can_be_read(seeds: range) -> None:
    """By workers that have the one before it and by those that have none, and by a new manager."""
    failures = {seed: failure for seed in seeds if (failure := simulate(stepping(seed)).failure)}
    assert failures == {}


@pytest.mark.parametrize("core", [steps_defects.NamesTooFew, steps_defects.TakesStepsForWhole])
def test_a_defect_of_steps_is_found(core: type[Scheduler]) -> None:
    """In some seeds; without the defect, nothing is wrong with them."""
    found = (n for n in range(200) if simulate(stepping(n), with_core(core)).failure)
    seed = next(found)
    assert not simulate(stepping(seed)).failure


@pytest.mark.slow
def test_what_leads_to_a_version_must_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    """A core that removes it leaves versions that nobody can read."""
    right = next(seed for seed in range(50) if not simulate(stepping(seed)).failure)
    monkeypatch.setattr(queue, "linked", steps_defects.nothing_linked)
    wrong = [seed for seed in range(right, right + 12) if simulate(stepping(seed)).failure]
    assert wrong
