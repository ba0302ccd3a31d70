"""Clusters with faults whose rounds overlap: all checks hold, and planted defects are found."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from downpour.core.modes import OVERLAPPING
from downpour.core.scheduler import Scheduler
from downpour_lab.trials.faults import FaultKind
from downpour_lab.trials.plan import Plan, plan_of
from downpour_lab.trials.simulation import simulate
from tests.downpour_lab.trials import overlap_defects
from tests.downpour_lab.trials.planted import with_core
from tests.downpour_lab.trials.seeds import seeds_with


def overlapping(seed: int) -> Plan:
    """Return the plan of a seed with every experiment's rounds overlapping; few plans have any."""
    plan = plan_of(seed)
    policy = OVERLAPPING[seed % len(OVERLAPPING)]
    fields: dict[str, Any] = {
        "mode": "sync",
        "mode_options": {},
        "policy_options": {},
        "stop_after": None,
    }
    fields |= {"policy": policy, "standbys": 0, "overlap": 1}
    return replace(plan, specs=tuple((name, spec.replace(**fields)) for name, spec in plan.specs))


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "seeds",
    [
        range(20),
        pytest.param(range(20, 530), marks=pytest.mark.slow),
        pytest.param(range(530, 1_000), marks=pytest.mark.slow),
    ],
)
def test_whatever_goes_wrong_the_models_are_those_of_the_spec(seeds: range) -> None:
    """What a task begins from follows from its number, and never from what is there first."""
    failures = {seed: failure for seed in seeds if (failure := simulate(overlapping(seed)).failure)}
    assert failures == {}


@pytest.mark.parametrize(
    ("core", "sentence", "faults"),
    [
        (overlap_defects.BeginsFromTheNewest, "is not what it should be", ()),
        (overlap_defects.GoesOnFromWhatCounts, "is not what it should be", ()),
        (
            overlap_defects.GoesOnFromWhatWasRefused,
            "is not what it should be",
            (FaultKind.UPDATE_DAMAGED,),
        ),
    ],
)
def test_a_defect_of_overlapping_rounds_is_found(
    core: type[Scheduler], sentence: str, faults: tuple[FaultKind, ...]
) -> None:
    """In some seeds; without the defect, nothing is wrong with them."""
    found = (
        seed
        for seed in seeds_with(*faults, number=200)
        if sentence in simulate(overlapping(seed), with_core(core)).failure
    )
    seed = next(found)
    assert not simulate(overlapping(seed)).failure
