"""Quantiles that are predicted come to hold."""

from __future__ import annotations

import numpy as np
import pytest

from downpour.predictor.base import LEVELS
from downpour.predictor.calibration import PendingForecasts, Recalibrated, Tracker
from downpour.predictor.online import Online
from tests.predictor.test_selector import Constant


def test_a_tracker_comes_to_rest_at_the_quantiles_of_what_comes_out() -> None:
    """From a start that is far off, and each stage by itself."""
    outcomes = np.random.default_rng(0).normal(0, 0.1, 20_000)
    tracker = Tracker([[0.5] * 4, [-0.5] * 4, [0.0] * 4], rate=0.002)
    for outcome in outcomes:
        tracker.learn(np.array([0]), np.full((1, 4), outcome))
    found = tracker.offsets(np.array([0, 1]))
    assert found[0] == pytest.approx(np.quantile(outcomes, LEVELS), abs=0.03)
    assert found[1] == pytest.approx([-0.5] * 4)


def test_a_model_that_is_too_sure_is_widened() -> None:
    """It predicts 2 % around; what comes out is 10 % around: 90 % stay below the third."""
    outcomes = np.exp(np.random.default_rng(0).normal(0, 0.1, 8000))
    predictor = Online(Recalibrated(Constant([-0.02, 0.0, 0.02, 0.03])))
    below = []
    for seconds in outcomes:
        below.append(seconds <= predictor.predict("w", {}).q90)
        predictor.observe("w", {}, float(seconds))
    assert np.mean(below[4000:]) == pytest.approx(0.9, abs=0.02)


def test_forecasts_are_kept_for_the_outcome_and_not_longer() -> None:
    """At each stage the last one; then they are gone, and those of other workers stay."""
    pending = PendingForecasts()
    rows = [np.zeros(4), np.ones(4), np.full(4, 2.0)]
    pending.remember(["a", "b", "a"], np.array([0, 0, 1]), rows)
    pending.remember(["a"], np.array([0]), [np.full(4, 5.0)])
    due = [(stage, float(row[0]), out) for stage, row, out in pending.take(["a"], np.array([9.0]))]
    assert due == [(0, 5.0, 9.0), (1, 2.0, 9.0)]
    assert not list(pending.take(["a"], np.array([9.0])))
