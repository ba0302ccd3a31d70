"""The simple predictors expect what their names say."""

from __future__ import annotations

import pytest

from downpour.predictor.calibration import Online
from downpour.predictor.features import Model
from downpour.predictor.learned import Ewma, LastValue, Median


def after(model: Model, *told: tuple[str, float]) -> Online:
    """Return a predictor that has seen tasks of 10 samples."""
    predictor = Online(model)
    for worker, seconds in told:
        predictor.observe(worker, {"n_samples": 10.0}, seconds)
    return predictor


TOLD = (("a", 1.0), ("a", 4.0), ("b", 100.0), ("c", 9.0))


def test_each_expects_what_its_name_says() -> None:
    """For a task twice as large, twice as long."""
    told = {"n_samples": 20.0}
    assert after(LastValue(), *TOLD).predict("a", told).q50 == pytest.approx(8.0, rel=0.05)
    assert after(Ewma(), *TOLD).predict("a", told).q50 == pytest.approx(4.0, rel=0.05)
    assert after(Median(), *TOLD).predict("b", told).q50 == pytest.approx(12.0, rel=0.05)


def test_a_new_worker_is_taken_for_an_ordinary_one() -> None:
    """The cluster's median, for simple predictors of every kind."""
    for model in (LastValue(), Ewma()):
        answer = after(model, *TOLD).predict("new", {"n_samples": 10.0})
        assert answer.q50 == pytest.approx(6.0, rel=0.05)


def test_a_report_is_extrapolated() -> None:
    """A quarter in three seconds is a whole in twelve, with any history."""
    for model in (LastValue(), Ewma(), Median()):
        answer = after(model, *TOLD).predict("a", {"p25_elapsed_s": 3.0})
        assert answer.q50 == pytest.approx(12.0, rel=0.05)
        assert answer.q10 >= 3.0


def test_seconds_that_are_none_are_ignored() -> None:
    """Zero, negative, NaN, infinite."""
    predictor = after(LastValue(), *TOLD)
    for seconds in (0.0, -1.0, float("nan"), float("inf")):
        predictor.observe("a", {"n_samples": 10.0}, seconds)
    assert predictor.predict("a", {"n_samples": 10.0}).q50 == pytest.approx(4.0, rel=0.05)
