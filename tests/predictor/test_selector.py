"""The selector takes the member that is right on the run at hand, and no member breaks it."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import numpy as np
import pytest

from downpour.predictor import pretrained
from downpour.predictor.calibration import Online, Selector
from downpour.predictor.features import Array
from downpour.predictor.learned import Ewma, LastValue, Lstm, Median, read_trained


class Constant:
    """A model that always answers the same; it counts how often it was asked."""

    def __init__(self, answer: Sequence[float], error: Exception | None = None) -> None:
        self.answer = np.array(answer, dtype=float)
        self.error = error
        self.asked = 0

    def predict(self, workers: Sequence[str], tasks: Array) -> Array:  # noqa: ARG002
        self.asked += 1
        if self.error:
            raise self.error
        return np.tile(self.answer, (len(workers), 1))

    def learn(self, workers: Sequence[str], tasks: Array, seconds: Array) -> None:
        """Learn nothing."""


def run(selector: Selector, seconds: Array) -> Online:
    """Predict and observe (rounds, workers) of seconds."""
    predictor = Online(selector)
    for turn in seconds:
        names = [f"w{number}" for number in range(len(turn))]
        predictor.predict_many([(name, {"n_samples": 32.0}) for name in names])
        for name, took in zip(names, turn, strict=True):
            predictor.observe(name, {"n_samples": 32.0}, float(took))
    predictor.predict("w0", {})
    return predictor


def test_the_median_serves_names_that_are_not_machines() -> None:
    """Delays without memory: the history of a name predicts nothing."""
    delays = np.exp(np.random.default_rng(1).normal(2, 0.6, (40, 16)))
    trained = Lstm(read_trained().lstm)
    selector = Selector(
        {"lstm": trained, "ewma": Ewma(), "last-value": LastValue(), "median": Median()}
    )
    assert selector.chosen() == "lstm"
    run(selector, delays)
    assert selector.chosen() == "median"


def test_the_median_does_not_serve_different_workers() -> None:
    """The same delays, if each worker keeps its own."""
    own = np.exp(np.random.default_rng(1).normal(2, 0.6, 16))
    selector = Selector({"median": Median(), "ewma": Ewma()})
    run(selector, np.tile(own, (40, 1)))
    assert selector.chosen() == "ewma"


def test_it_goes_back_when_the_run_changes() -> None:
    """Recent outcomes count most."""
    selector = Selector({"low": Constant([0, 0, 0, 0]), "high": Constant([3, 3, 3, 3])})
    run(selector, np.full((20, 8), np.exp(3)))
    assert selector.chosen() == "high"
    run(selector, np.ones((80, 8)))
    assert selector.chosen() == "low"


@pytest.mark.parametrize(
    "broken",
    [
        Constant([0, np.nan, 1, 2]),
        Constant([0, 2, 1, 3]),
        Constant([0, 1, 2, np.inf]),
        Constant([], error=RuntimeError("no weights")),
    ],
    ids=["nan", "crossing", "infinite", "raising"],
)
def test_a_broken_member_is_set_aside_with_one_warning(
    broken: Constant, caplog: pytest.LogCaptureFixture
) -> None:
    """From then on it is not even asked; the others answer, the first time, too."""
    selector = Selector({"broken": broken, "sound": Constant([0, 1, 2, 3])})
    with caplog.at_level(logging.WARNING):
        answer = run(selector, np.ones((5, 4))).predict("w0", {})
    assert answer.quantiles == pytest.approx(np.exp([0, 1, 2, 3]))
    assert broken.asked == 1
    assert [record.getMessage() for record in caplog.records if "setting aside" in record.message]
    assert len(caplog.records) == 1
    assert selector.chosen() == "sound"


def test_the_error_of_the_last_member_is_raised() -> None:
    """No other member is left that could answer."""
    selector = Selector({"only": Constant([], error=RuntimeError("no weights"))})
    with pytest.raises(RuntimeError, match="no weights"):
        Online(selector).predict("w", {})


def test_names_that_come_and_go_take_no_more_room_in_the_end() -> None:
    """Ten thousand workers that are seen once each, as where functions are rented by the call."""
    predictor = pretrained()
    for start in range(0, 10_000, 50):
        names = [f"w{number}" for number in range(start, start + 50)]
        predictor.predict_many([(name, {"n_samples": 32.0}) for name in names])
        for name in names:
            predictor.observe(name, {"n_samples": 32.0}, 3.0)
    assert predictor.predict("new", {"n_samples": 32.0}).q50 == pytest.approx(3.0, rel=0.1)
