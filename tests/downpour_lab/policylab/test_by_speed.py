"""Policies are compared on machines whose speeds a user names in Python."""

from __future__ import annotations

from typing import Any

import pytest

from downpour.base.errors import SpecError
from downpour.core.stragglers.base import POLICIES
from downpour_lab.policylab.comparison import compare_policies


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
