"""How much each update counts: shares of amounts, and the rules of the family."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from downpour.base.errors import UpdatesRefused
from downpour.files.aggregators import AGGREGATORS, Contribution
from downpour.files.aggregators.weights import shares

amounts = st.lists(st.floats(0, allow_infinity=False, allow_nan=False), min_size=1, max_size=50)


@given(amounts=amounts)
def test_shares_sum_to_one(amounts: list[float]) -> None:
    """The shares of any amounts, subnormal or huge, are a convex combination."""
    found = shares(amounts)
    assert math.fsum(found) == pytest.approx(1, abs=1e-12)
    assert all(0 <= share <= 1 for share in found)


def test_shares_are_proportional() -> None:
    """Twice the amount is twice the share; if all are zero, no contribution is preferred."""
    assert shares([1, 2, 5]) == (0.125, 0.25, 0.625)
    assert shares([0.0, 0.0]) == (0.5, 0.5)


@pytest.mark.parametrize(
    ("rule", "facts", "weights"),
    [
        ("average", [(0, {"samples": 1, "loss": 9.0}), (1, {"samples": 99})], (0.5, 0.5)),
        ("samples", [(0, {"samples": 100}), (1, {"samples": 300})], (0.25, 0.75)),
        ("weighted", [(0, {"loss": 0.5}), (1, {"loss": 1.5})], (0.25, 0.75)),
        ("weighted", [(0, {"loss": 0.0}), (1, {"loss": 0.0})], (0.5, 0.5)),
        ("first", [(2, {}), (0, {}), (1, {})], (0.0, 1.0, 0.0)),
        ("first", [(2, {}), (1, {})], (0.0, 1.0)),  # without shard 0 the lowest counts
    ],
)
def test_each_rule_weighs_by_its_facts(
    imagine: Any, rule: str, facts: list[tuple[int, dict[str, Any]]], weights: tuple[float, ...]
) -> None:
    """Equally, by samples, by loss, or the lowest shard alone."""
    assert AGGREGATORS[rule]([imagine(shard, **given) for shard, given in facts]) == weights


@pytest.mark.parametrize("loss", [-0.1, math.nan, math.inf, -math.inf])
def test_a_loss_that_cannot_be_a_weight_is_refused(imagine: Any, loss: float) -> None:
    """All shards with such a loss are named, and only they."""
    parts = [imagine(0, loss=loss), imagine(1), imagine(2, loss=loss)]
    with pytest.raises(UpdatesRefused, match=r"shard 0: loss .* cannot be a weight") as refusal:
        AGGREGATORS["weighted"](parts)
    assert set(refusal.value.reasons) == {0, 2}


def contributions(imagine: Any, count: int) -> list[Contribution]:
    """Return contributions that differ in everything."""
    return [imagine(shard, samples=3 * shard + 1, loss=0.5 + shard) for shard in range(count)]


@pytest.mark.parametrize("rule", AGGREGATORS)
@pytest.mark.parametrize("count", [1, 2, 10, 1000])
def test_weights_are_a_convex_combination(rule: str, count: int, imagine: Any) -> None:
    """One weight a contribution, none negative; they sum to one, in any order to the last bit."""
    parts = contributions(imagine, count)
    weights = AGGREGATORS[rule](parts)
    assert len(weights) == count
    assert all(type(weight) is float and weight >= 0 for weight in weights)
    assert math.fsum(weights) == pytest.approx(1, abs=1e-12)
    assert AGGREGATORS[rule](parts[::-1]) == weights[::-1]


@pytest.mark.parametrize("rule", AGGREGATORS)
def test_a_single_contribution_is_everything(rule: str, imagine: Any) -> None:
    """One shard's weight is exactly one; a round without updates never gets here."""
    assert AGGREGATORS[rule]([imagine(5, samples=0, loss=0.0)]) == (1.0,)
    with pytest.raises(ValueError, match="nothing to aggregate"):
        AGGREGATORS[rule]([])
