"""`downpour simulate` on the command line."""

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from downpour_lab.simulated.manager import SimulatedManager
from downpour_lab.trials import simulation
from tests.downpour_lab.trials.defects import ActsBeforeItKeeps

Downpour = Callable[..., Any]


@pytest.mark.slow
def test_seeds_that_are_well_end_with_status_0(downpour: Downpour) -> None:
    """One line says how many there were."""
    outcome = downpour("simulate", "--seeds", 20, "--from-seed", 5)
    assert (outcome.status, outcome.out) == (0, "")
    assert outcome.err.startswith("20 seeds, ")
    told = json.loads(downpour("simulate", "--seeds", 3, "--json").out)
    assert (told["seeds"], told["failure"]) == (3, None)
    assert (told["twice"], told["changed"]) == ([0], [])
    assert all(made > 0 for made in told["compared"].values())
    assert "manager.results" in told["never"]["message"]


def test_a_seed_tells_its_story(downpour: Downpour) -> None:
    """Its faults have numbers, and can be left out."""
    whole = downpour("simulate", "--seed", 8, "--story")
    assert whole.status == 0
    assert "  [1] " in whole.out
    assert "all experiments have ended" in whole.out.splitlines()[-1]
    calm = downpour("simulate", "--seed", 8, "--faults", "none", "--story")
    assert "  [" not in calm.out
    told = json.loads(downpour("simulate", "--seed", 8, "--faults", "1", "--json").out)
    assert [fault["number"] for fault in told["faults"]] == [1]
    assert "all is well" in downpour("simulate", "--seed", 8).out


@pytest.mark.slow
def test_a_failing_seed_ends_with_status_1_and_the_command_that_shows_it(
    downpour: Downpour, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The story is that of the fewest faults that it takes; repeated, it is the same."""
    real = simulation.simulate

    def simulate(
        plan: Any, manager_class: type[SimulatedManager] = SimulatedManager, **how: Any
    ) -> Any:
        """Run it under a manager that has a defect."""
        return real(
            plan, ActsBeforeItKeeps if manager_class is SimulatedManager else manager_class, **how
        )

    monkeypatch.setattr(simulation, "simulate", simulate)
    monkeypatch.setattr(simulation, "simulate", simulate)
    outcome = downpour("simulate", "--seeds", 600)
    assert outcome.status == 1
    assert "is running" in outcome.out
    assert "faults are enough:" in outcome.out
    again = outcome.err.splitlines()[-1].removeprefix("again: downpour ").split()
    shown = downpour(*again)
    assert shown.status == 1
    assert shown.out.splitlines()[-1] == outcome.out.splitlines()[-1]
    assert json.loads(downpour(*again[:-1], "--json").out)["failure"]


def test_a_failure_is_shown_as_it_is(downpour: Downpour, monkeypatch: pytest.MonkeyPatch) -> None:
    """Brackets in it are no colours, and what looks like the end of one is no mistake."""
    failure = "shard [1] of [red]x[/red] was [/lost]"
    real = simulation.simulate
    monkeypatch.setattr(
        simulation, "simulate", lambda plan, **how: replace(real(plan, **how), failure=failure)
    )
    outcome = downpour("simulate", "--seed", 8)
    assert outcome.status == 1
    assert outcome.out.startswith(f"seed 8: {failure} (")


def test_workers_are_counted_in_rounds_an_hour(downpour: Downpour) -> None:
    """As a table within 80 columns, or as JSON."""
    words = ("simulate", "--workers", 4, "--shards", 8, "--rounds", 2, "--spread", 0)
    shown = downpour(*words)
    assert shown.status == 0
    assert "rounds per hour" in shown.out
    assert max(map(len, shown.out.splitlines())) <= 80
    told = json.loads(downpour(*words, "--json").out)
    assert 28 < told["rounds_per_hour"] < 30
    assert (told["workers"], told["shards"], told["lost"]) == (4, 8, 0)
    apart = json.loads(downpour(*words, "--mode", "downpour", "--policy", "dylu", "--json").out)
    assert (apart["mode"], apart["policy"], len(apart["staleness"])) == ("downpour", "dylu", 16)
