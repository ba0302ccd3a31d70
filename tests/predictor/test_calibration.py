"""Quantiles that are predicted come to hold."""

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from downpour.predictor import calibration
from downpour.predictor.features import LEVELS, WORKERS_MAX, Array, task_rows
from tests.predictor.test_simple import Constant

AT_ASSIGNMENT = np.array([0])


def level(of: calibration.Corrections, worker: str) -> Array:
    """Return a worker's offsets at assignment."""
    offsets: Array = of.of([worker], AT_ASSIGNMENT)[0]
    return offsets


def tell(corrections: calibration.Corrections, worker: str, outcome: float) -> None:
    """Tell the outcome of a task that was predicted, as 0, at assignment."""
    corrections.learn([worker], AT_ASSIGNMENT, np.full((1, 4), outcome))


def test_a_tracker_comes_to_rest_at_the_quantiles_of_what_comes_out() -> None:
    """From a start that is far off, and each stage by itself."""
    outcomes = np.random.default_rng(0).normal(0, 0.1, 20_000)
    tracker = calibration.Tracker([[0.5] * 4, [-0.5] * 4, [0.0] * 4], rate=0.002)
    for outcome in outcomes:
        tracker.learn(np.array([0]), np.full((1, 4), outcome))
    found = tracker.offsets(np.array([0, 1]))
    assert found[0] == pytest.approx(np.quantile(outcomes, LEVELS), abs=0.03)
    assert found[1] == pytest.approx([-0.5] * 4)


@pytest.mark.parametrize("drift", [lambda _: 2.0, lambda turn: 2.0 + turn / 40])
def test_a_tracker_is_adaptive_conformal_inference(drift: Callable[[int], float]) -> None:
    """It follows what MAPIE does, task by task, whether outcomes keep their law or drift.

    MAPIE moves the level of a quantile of given scores, where the tracker moves the quantile. Where
    these scores are the uniform 1/1000, 2/1000 and so on, level and quantile are the same number.
    """
    from mapie.conformity_scores import AbsoluteConformityScore
    from mapie.regression import TimeSeriesRegressor
    from sklearn.dummy import DummyRegressor

    scores, at = np.arange(1, 1000) / 1000, np.zeros((999, 1))
    zero = DummyRegressor(strategy="constant", constant=0.0).fit(at, scores)
    zero.fitted_ = True  # by which MAPIE sees that it is fitted
    symmetric = AbsoluteConformityScore(sym=True)
    mapie = TimeSeriesRegressor(zero, method="aci", cv="prefit", conformity_score=symmetric)
    mapie.fit(at, scores)
    tracker = calibration.Tracker([list(LEVELS)] * 3, rate=0.05)
    generator = np.random.default_rng(0)
    for turn in range(200):
        outcome = np.array([np.clip(generator.beta(2, drift(turn)), 0.001, 0.999)])
        asked = {"confidence_level": [0.9]}
        _, bounds = mapie.predict(at[:1], allow_infinite_bounds=True, **asked)
        offset = tracker.offsets(AT_ASSIGNMENT)[0, LEVELS.index(0.9)]
        assert offset == pytest.approx(bounds[0, 1, 0], abs=1e-9)
        mapie.adapt_conformal_inference(at[:1], outcome, gamma=0.05, **asked)
        tracker.learn(AT_ASSIGNMENT, np.tile(outcome, (1, 4)))


@given(st.lists(st.floats(-0.2, 0.2), min_size=1, max_size=300), st.integers(0, 50))
def test_the_coverage_error_is_bounded_by_the_offset(outcomes: list[float], others: int) -> None:
    """A worker's outcomes may be anything, also chosen to do harm, and beside them those of others.

    The share of them above a quantile is off by the own offset over the steps (Gibbs and Candès
    2021, proposition 4.1). So it vanishes with the number of tasks, because offsets are limited.
    """
    corrections = calibration.Corrections(most=np.inf)
    for _ in range(others):
        tell(corrections, "other", 0.1)
    above = np.zeros(4)
    for outcome in outcomes:
        above += outcome > level(corrections, "w")
        tell(corrections, "w", outcome)
    own = level(corrections, "w") - level(corrections, "never seen")
    missed = above / len(outcomes) - (1 - np.array(LEVELS))
    assert missed == pytest.approx(
        own / (calibration._OWN_STEP * calibration._REACH * len(outcomes)), abs=1e-9
    )


def test_a_new_worker_starts_where_its_cluster_is_and_then_goes_its_own_way() -> None:
    """All take 10 % longer than predicted; then one joins that takes 10 % less, beside them."""
    corrections = calibration.Corrections(most=0.3)
    for _ in range(400):
        for worker in ("a", "b", "c"):
            tell(corrections, worker, 0.1)
    started = level(corrections, "new")
    assert started[1:3] == pytest.approx([0.1, 0.1], abs=0.03)
    others = level(corrections, "a")
    for _ in range(300):
        tell(corrections, "new", -0.1)
        for worker in ("a", "b", "c"):
            tell(corrections, worker, 0.1)
    assert level(corrections, "new")[1] == pytest.approx(-0.1, abs=0.03)
    assert level(corrections, "a") == pytest.approx(others, abs=0.03)


def test_a_thousand_workers_at_once_do_not_throw_it_off_balance() -> None:
    """Each has its noise, and the offset for a new one comes near to their quantiles and stays."""
    corrections, generator = calibration.Corrections(most=0.3), np.random.default_rng(0)
    names, stage = [f"w{number}" for number in range(1000)], np.zeros(1000, int)
    for turn in range(40):
        outcomes = generator.normal(0, 0.1, (1000, 1))
        corrections.learn(names, stage, np.tile(outcomes, (1, 4)))
        if turn >= 20:
            found = level(corrections, "new")
            assert found == pytest.approx([-0.128, 0.0, 0.128, 0.205], abs=0.04)


def test_the_wide_quantiles_of_a_first_round_do_not_make_the_next_ones_narrow() -> None:
    """All outcomes lie far within them, which says nothing of tasks whose workers are known."""
    corrections = calibration.Corrections(most=0.3)
    names, stage = [f"w{number}" for number in range(16)], np.zeros(16, int)
    corrections.learn(names, stage, np.tile([1.5, 0.0, -1.5, -2.5], (16, 1)))
    assert level(corrections, "new") == pytest.approx([0.0] * 4, abs=0.01)


def test_offsets_stay_within_their_limit_and_come_back_from_it_at_once() -> None:
    """However long outcomes are far away: a limit that was only applied on use would wind up."""
    corrections = calibration.Corrections(most=0.02)
    for _ in range(500):
        tell(corrections, "w", 5.0)
    assert level(corrections, "w") == pytest.approx([0.04] * 4)
    for _ in range(20):
        tell(corrections, "w", -5.0)
    assert level(corrections, "w")[1] < 0.03


def test_names_that_are_new_with_every_task_do_not_pile_up() -> None:
    """The worker whose last task is the longest ago is forgotten first."""
    corrections = calibration.Corrections(most=0.3)
    tell(corrections, "kept", 1.0)
    for number in range(WORKERS_MAX):
        if number == 10:
            tell(corrections, "kept", 1.0)
        tell(corrections, f"w{number}", 1.0)
    assert len(corrections._own) == WORKERS_MAX
    assert "w0" not in corrections._own
    assert {"kept", f"w{WORKERS_MAX - 1}"} <= corrections._own.keys()


@pytest.mark.slow
def test_a_model_that_is_too_sure_is_widened() -> None:
    """It predicts 2 % around; what comes out is 10 % around: 90 % stay below the third."""
    outcomes = np.exp(np.random.default_rng(0).normal(0, 0.1, 8000))
    predictor = calibration.Online(calibration.Recalibrated(Constant([-0.02, 0.0, 0.02, 0.03])))
    below = []
    for seconds in outcomes:
        below.append(seconds <= predictor.predict("w", {}).q90)
        predictor.observe("w", {}, float(seconds))
    assert np.mean(below[4000:]) == pytest.approx(0.9, abs=0.02)


def test_a_model_that_suits_one_worker_and_not_another_is_right_for_both() -> None:
    """One is as the model says, one is always slower: an offset for both would fail both."""
    generator = np.random.default_rng(0)
    predictor = calibration.Online(calibration.Recalibrated(Constant([-0.13, 0.0, 0.13, 0.2])))
    below: dict[str, list[bool]] = {"even": [], "slow": []}
    for _ in range(1500):
        for worker, usual in (("even", 0.0), ("slow", 0.15)):
            seconds = float(np.exp(generator.normal(usual, 0.1)))
            below[worker].append(seconds <= predictor.predict(worker, {}).q90)
            predictor.observe(worker, {}, seconds)
    for worker in below:
        assert np.mean(below[worker][500:]) == pytest.approx(0.9, abs=0.03)


def test_forecasts_are_kept_for_the_outcome_and_not_longer() -> None:
    """At each stage the last one; then they are gone, and those of other workers stay."""
    pending = calibration.PendingForecasts()
    afresh, reported = {"n_samples": 8.0}, {"n_samples": 8.0, "p25_elapsed_s": 1.0}
    rows = [np.zeros(4), np.full(4, 5.0), np.ones(4)]
    pending.remember(["a"], task_rows([afresh]), [np.full(4, 7.0)])
    pending.remember(["a", "b"], task_rows([afresh, afresh]), rows[:2])
    pending.remember(["a"], task_rows([reported]), rows[2:])
    finished, seconds = task_rows([reported]), np.exp([9.0])
    names, stage, surprises = pending.take(["a"], finished, seconds)
    assert (names, stage.tolist(), surprises[:, 0].tolist()) == (["a", "a"], [0, 1], [9.0, 8.0])
    assert pending.take(["a"], finished, seconds)[0] == []
    assert pending.take(["b"], finished, seconds)[0] == ["b"]


def test_a_forecast_of_the_next_task_is_not_judged_by_this_one() -> None:
    """The manager asks for both at once: how a worker would do afresh, and when its task ends."""
    pending = calibration.PendingForecasts()
    afresh, reported = {"n_samples": 8.0}, {"n_samples": 8.0, "p25_elapsed_s": 1.0}
    pending.remember(["a"], task_rows([afresh]), [np.zeros(4)])
    both = task_rows([afresh, reported])
    pending.remember(["a", "a"], both, [np.full(4, 6.0), np.ones(4)])
    _, stage, surprises = pending.take(["a"], task_rows([reported]), np.exp([9.0]))
    assert (stage.tolist(), surprises[:, 0].tolist()) == ([0, 1], [9.0, 8.0])


@pytest.mark.parametrize("samples", [400.0, 100.0, 25.0])
def test_a_forecast_for_another_size_is_judged_by_the_time_of_a_sample(samples: float) -> None:
    """A hundred samples were to take a second, and others took as long a sample: no surprise."""
    pending = calibration.PendingForecasts()
    pending.remember(["a"], task_rows([{"n_samples": 100.0}]), [np.zeros(4)])
    finished = task_rows([{"n_samples": samples}])
    _, _, surprises = pending.take(["a"], finished, np.array([samples / 100]))
    assert surprises[0] == pytest.approx([0.0] * 4)
