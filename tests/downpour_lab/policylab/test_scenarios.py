"""Which conditions a scenario stands for."""

from __future__ import annotations

from pathlib import Path

import pytest

from downpour.base.errors import SpecError
from downpour_lab.policylab.conditions import (
    MADE_UP,
    WHEN,
    Recording,
    _spread,
    conditions_of,
    read_recordings,
    scenarios_of,
)
from tests.downpour_lab.policylab.test_traced import made_up, written

CHOICE = {"jobs": 2, "rounds": 3, "standbys": 1}


@pytest.fixture
def recordings(tmp_path: Path) -> list[Recording]:
    """One small job."""
    return list(read_recordings(written(tmp_path, made_up())))


def test_a_traces_scenarios_come_first(recordings: list[Recording]) -> None:
    """Then those that are made up."""
    named = scenarios_of(recordings)
    assert named[-len(MADE_UP) :] == [*MADE_UP]
    assert named[0] == recordings[0].scenario


@pytest.mark.parametrize("scenario", MADE_UP)
def test_a_scenario_that_is_made_up_has_as_many_jobs_as_are_wanted(
    recordings: list[Recording], scenario: str
) -> None:
    """A trace's has no more than there are."""
    assert len(conditions_of(recordings, scenario, **CHOICE)) == 2
    assert len(conditions_of(recordings, recordings[0].scenario, **CHOICE)) == 1


@pytest.mark.parametrize("standbys", [-1, 1000])
def test_standbys_are_of_the_traces_workers(recordings: list[Recording], standbys: int) -> None:
    """More of them than workers cannot be."""
    with pytest.raises(SpecError, match=r"standbys = -?\d+: must be from 0 to"):
        conditions_of(recordings, "memoryless", **(CHOICE | {"standbys": standbys}))


def test_an_unknown_scenario_is_refused(recordings: list[Recording]) -> None:
    """One line says which there are."""
    with pytest.raises(SpecError, match=r"scenario = 'storm': must be of .*one-straggler"):
        conditions_of(recordings, "storm", **CHOICE)


def test_some_of_many_jobs_are_spread_over_all() -> None:
    """The first and the last are among them."""
    jobs = list(range(10))
    assert _spread(jobs, 3) == [0, 4, 9]  # type: ignore[arg-type, comparison-overlap]
    assert _spread(jobs, 99) == jobs  # type: ignore[arg-type, comparison-overlap]


@pytest.mark.parametrize(("scenario", "share"), WHEN.items())
def test_a_straggler_is_slow_from_when_its_scenario_says(
    recordings: list[Recording], scenario: str, share: float
) -> None:
    """Before that it does what the others do, and then a quarter."""
    job, *_ = conditions_of(recordings, scenario, **CHOICE)
    curves = [job.curve(0, host) for host in range(job.hosts)]
    curve = max(curves, key=lambda curve: curve.when(1.0))
    begin, rest = curve.when(share), curve.when(1.0) - curve.when(share)
    assert rest / (1.0 - share) == pytest.approx(4 * begin / share)
