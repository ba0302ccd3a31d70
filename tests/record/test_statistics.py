"""Means and their intervals."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from downpour.record.result_parts import Estimate, t_quantile


@pytest.mark.parametrize(
    ("degrees", "expected"), [(1, 12.7062), (2, 4.3027), (9, 2.2622), (29, 2.0452)]
)
def test_the_quantiles_are_those_of_the_tables(degrees: int, expected: float) -> None:
    """Two-sided, 95 %, as printed in any book of statistics."""
    assert t_quantile(degrees) == pytest.approx(expected, abs=5e-5)


def test_an_interval_is_what_the_textbook_says() -> None:
    """Mean 3, deviation sqrt(2.5), five values: 2.7764 standard errors to either side."""
    estimate = Estimate.of([1, 2, 3, 4, 5])
    assert estimate is not None
    assert (estimate.mean, estimate.count) == (3, 5)
    assert estimate.half_width == pytest.approx(2.7764 * math.sqrt(2.5 / 5), abs=1e-4)


def test_one_value_has_no_interval_and_none_no_mean() -> None:
    """What was not measured does not count."""
    assert Estimate.of([None, 7.0, math.nan]) == Estimate(7.0, None, 1)
    assert Estimate.of([None, math.inf]) is None


@given(value=st.floats(-1e6, 1e6), count=st.integers(2, 20))
def test_the_same_value_over_and_over_is_certain(value: float, count: int) -> None:
    """The interval has no width."""
    estimate = Estimate.of([value] * count)
    assert estimate is not None
    assert estimate.half_width == 0
