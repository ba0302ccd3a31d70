"""Amounts become shares."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from downpour.files.aggregators.weights import shares

amounts = st.lists(st.floats(0, allow_infinity=False, allow_nan=False), min_size=1, max_size=50)


@given(amounts=amounts)
def test_shares_sum_to_one(amounts: list[float]) -> None:
    """The shares of any amounts, subnormal or huge, are a convex combination."""
    found = shares(amounts)
    assert math.fsum(found) == pytest.approx(1, abs=1e-12)
    assert all(0 <= share <= 1 for share in found)


def test_shares_are_proportional() -> None:
    """Twice the amount is twice the share."""
    assert shares([1, 2, 5]) == (0.125, 0.25, 0.625)


def test_nothing_at_all_is_shared_evenly() -> None:
    """Amounts that are all zero say nothing, so no contribution is preferred."""
    assert shares([0.0, 0.0]) == (0.5, 0.5)


def test_no_amounts_are_a_mistake() -> None:
    """There is no mean of nothing."""
    with pytest.raises(ValueError, match="nothing to aggregate"):
        shares([])
