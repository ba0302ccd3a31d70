"""Policies are compared on machines of the simulator, and status says the same of contributions."""

from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean, median
from typing import Any

import pytest

from downpour.base.errors import SpecError
from downpour.core.stragglers.base import POLICIES, Action, RoundView, Saving
from downpour.core.stragglers.handoff import contributions
from downpour_lab.policylab.comparison import Contender, Settings, compare_policies, rounds_on
from downpour_lab.policylab.conditions import SAMPLES, Unequal


@pytest.mark.slow
def test_every_policy_is_tried_on_the_same_machines() -> None:
    """One machine of four takes four times as long, and a fifth one stands by."""
    outcomes = compare_policies([1, 1, 1, 0.25, 1], standbys=1, rounds=2)
    assert [one.policy for one in outcomes] == list(POLICIES)
    seconds = {one.policy: one.round_seconds for one in outcomes}
    assert seconds["wait"] == pytest.approx(40, rel=0.2)
    assert max(seconds.values()) == seconds["wait"]
    assert seconds["handoff"] < 20


def test_the_cost_of_a_policy_is_told() -> None:
    """Dropping the slowest of two loses its half; waiting costs time only."""
    wait, drop = compare_policies([1, 0.25], policies=["wait", "backup"], rounds=2)
    assert wait.lost == wait.moves == 0
    assert wait.extra_work == pytest.approx(0)
    assert drop.lost == pytest.approx(0.5)
    assert drop.extra_work > 0


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"speeds": []}, r"speeds.*must be a list of numbers above 0"),
        ({"speeds": [1, 0]}, r"speeds.*must be a list of numbers above 0"),
        ({"speeds": [1, 1], "standbys": 2}, r"standbys.*from 0 to 1; there are 2 speeds"),
        ({"speeds": [1], "policies": ["handof"]}, r"policies.*did you mean .?handoff"),
        ({"speeds": [1], "policies": "wait"}, r"policies.*must be a list"),
        ({"speeds": [1], "rounds": 0}, r"rounds.*from 1 to 10000"),
        ({"speeds": [1], "task_seconds": 0}, r"task_seconds.*above 0"),
    ],
)
def test_bad_arguments_are_refused_in_one_line(given: dict[str, Any], said: str) -> None:
    """Which names the argument, and says what it accepts."""
    with pytest.raises(SpecError, match=said):
        compare_policies(**given)


HANDOFF = Contender(name="handoff", standbys=0, snapshots=True)

FAST = (1.0, 1.0, 1.0, 1.0)

SLOW = "host-0"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("shards", "speed", "state"),
    [
        (5, 1 / 2, "trains"),
        (5, 1 / 4, "trains"),
        (5, 1 / 10, "trains"),
        (8, 1 / 4, "trains"),
        (8, 1 / 30, "stands by"),
    ],
)
def test_the_told_saving_of_a_machine_is_its_saving(shards: int, speed: float, state: str) -> None:
    """Within a tenth of the time, by the views that the scheduler makes while it trains."""
    said: list[Saving] = []

    def look(view: RoundView) -> Sequence[Action]:
        if view.round >= 2 and len(view.workers) > len(FAST):
            said.extend(contributions(view, (SAMPLES,) * shards, [SLOW]).values())
        return POLICIES["handoff"].decide(view)

    policies = {**POLICIES, "handoff": replace(POLICIES["handoff"], decide=look)}

    def seconds(*speeds: float) -> float:
        job = Unequal(speeds=speeds, hosts=shards, rounds=8)
        settings = Settings(heartbeat_seconds=0.5)
        rounds = rounds_on(len(speeds), HANDOFF, job, settings, policies=policies)
        return fmean(one.seconds for one in rounds[2:])

    saves = 1 - seconds(speed, *FAST) / seconds(*FAST)
    stands_by = median(one.stands_by for one in said)
    predicted = median(one.share for one in said)
    assert stands_by == (state == "stands by")
    assert abs((0.0 if stands_by else predicted) - saves) < 0.1
    assert predicted < 0 or not stands_by
