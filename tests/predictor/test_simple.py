"""Predictors expect what their names say, and learned ones say what they do of strangers."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from downpour.predictor import make
from downpour.predictor.calibration import Online
from downpour.predictor.features import LEVELS, Model
from downpour.predictor.learned import Ewma, LastValue, Median, Trained, for_a_stranger


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


Q10, Q50, Q90, Q98 = range(4)


@pytest.mark.parametrize("spread", [0.05, 0.5, 2.0])
@pytest.mark.parametrize("workers", [5, 20, 200])
def test_a_stranger_is_one_more_of_the_cluster(workers: int, spread: float) -> None:
    """Its task stays below each quantile as often as promised, however unlike the workers are.

    With few workers a cluster's quantiles are not known better than to one part in so many.
    """
    generator = np.random.default_rng(0)
    below = np.zeros(4)
    for _ in range(2000):
        times = spread * generator.standard_t(4, workers + 1)
        below += times[-1] <= for_a_stranger(times[:-1])
    assert below / 2000 == pytest.approx(LEVELS, abs=0.03 + 0.5 / workers)


@given(st.lists(st.floats(-10, 10), min_size=1, max_size=60))
def test_its_quantiles_are_those_of_split_conformal_prediction(times: list[float]) -> None:
    """Of n + 1 equally likely draws, n are known; the last one moves a quantile by one at most."""
    found, known = for_a_stranger(np.array(times)), [-np.inf, *sorted(times), np.inf]
    assert found.tolist() == sorted(found)
    for place, level in enumerate(LEVELS):
        conformal = int(np.ceil((len(times) + 1) * level - 1e-9))
        assert known[conformal - 1] <= found[place] <= known[conformal]


def test_without_a_cluster_only_the_order_of_magnitude_is_known() -> None:
    """A tenth of the tasks below 0.22 times the usual time, a fiftieth above 12 times."""
    found = np.exp(for_a_stranger(np.zeros(0)))
    assert found == pytest.approx([0.22, 1.0, 4.5, 12.2], rel=0.06)


@pytest.mark.parametrize("name", ["lstm", "ridge", "selector"])
def test_a_new_worker_is_predicted_as_its_cluster(name: str, trained: Trained) -> None:
    """Half of them need a second for a task, half of them two. Once it reports, that counts."""
    predictor = make(name, trained)
    for _ in range(10):
        for number in range(20):
            predictor.observe(f"w{number}", {"n_samples": 100.0}, 1.0 + number % 2)
    afresh = predictor.predict("new", {"n_samples": 100.0})
    assert afresh.q10 == pytest.approx(1.0, rel=0.05)
    assert 1.0 < afresh.q50 < 2.05
    assert afresh.q90 == pytest.approx(2.0, rel=0.05)
    larger = predictor.predict("another", {"n_samples": 400.0})
    assert larger.q90 == pytest.approx(4 * afresh.q90, rel=0.05)
    reported = predictor.predict("new", {"n_samples": 100.0, "p50_elapsed_s": 40.0})
    assert 60 < reported.q50 < 110
