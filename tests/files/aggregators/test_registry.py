"""What every rule of the family keeps."""

from __future__ import annotations

import math
from typing import Any

import pytest

from downpour.files.aggregators import AGGREGATORS, Contribution


@pytest.fixture(params=AGGREGATORS)
def rule(request: pytest.FixtureRequest) -> str:
    """Each rule's name."""
    return str(request.param)


def contributions(imagine: Any, count: int) -> list[Contribution]:
    """Return contributions that differ in everything."""
    return [imagine(shard, samples=3 * shard + 1, loss=0.5 + shard) for shard in range(count)]


@pytest.mark.parametrize("count", [1, 2, 10, 1000])
def test_weights_are_a_convex_combination(rule: str, count: int, imagine: Any) -> None:
    """There is one weight a contribution; none is negative; they sum to one."""
    weights = AGGREGATORS[rule](contributions(imagine, count))
    assert len(weights) == count
    assert all(type(weight) is float and weight >= 0 for weight in weights)
    assert math.fsum(weights) == pytest.approx(1, abs=1e-12)


def test_weights_go_with_their_contributions(rule: str, imagine: Any) -> None:
    """In every order of the contributions, each has the same weight, to the last bit."""
    parts = contributions(imagine, 7)
    forwards = AGGREGATORS[rule](parts)
    assert AGGREGATORS[rule](parts[::-1]) == forwards[::-1]


def test_a_single_contribution_is_everything(rule: str, imagine: Any) -> None:
    """One shard's weight is exactly one."""
    assert AGGREGATORS[rule]([imagine(5, samples=0, loss=0.0)]) == (1.0,)


def test_no_contributions_are_a_mistake(rule: str) -> None:
    """A round without updates never gets here."""
    with pytest.raises(ValueError, match="nothing to aggregate"):
        AGGREGATORS[rule]([])
