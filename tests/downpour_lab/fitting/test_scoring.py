"""Scores are what their names say."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from downpour.base.values import Forecast
from downpour.predictor.features import Features, Request
from downpour_lab.fitting.scoring import folds, replay_job, scores
from downpour_lab.fitting.training_data import Traces
from tests.predictor.conftest import WORKERS


class Knows:
    """A predictor that was told the outcomes, and is off by a factor; it remembers its calls."""

    def __init__(self, traces: Traces, factor: float) -> None:
        self.told = iter(
            np.repeat([traces.seconds(rows) for rows in traces.jobs[0].rounds], 2, axis=0)
        )
        self.factor = factor
        self.observed: list[tuple[str, float]] = []

    def predict(self, worker: str, features: Features) -> Forecast:
        raise NotImplementedError

    def predict_many(self, requests: Sequence[Request]) -> list[Forecast]:
        outcome = next(self.told)[: len(requests)] * self.factor
        return [Forecast.of(seconds * np.array([0.9, 1, 1.1, 1.2])) for seconds in outcome]

    def observe(self, worker: str, features: Features, seconds: float) -> None:
        self.observed.append((worker, features["p25_elapsed_s"] / seconds))


def test_a_perfect_forecast_is_never_wrong(traces: Traces) -> None:
    """And who is a tenth above the truth has an error of 10 % and still ranks all rightly."""
    perfect = Knows(traces, 1.0)
    found = list(scores("it", [replay_job(lambda: perfect, traces, traces.jobs[0])]))
    assert [score.stage for score in found] == ["assignment", "25 %"]
    for score in found:
        assert score.mape == pytest.approx(0)
        assert score.coverage == 1
        assert (score.precision, score.recall, score.pr_auc) == (1, 1, 1)
    assert len(perfect.observed) == 12 * WORKERS
    off = Knows(traces, 1.15)
    score = next(scores("it", [replay_job(lambda: off, traces, traces.jobs[0])]))
    assert score.mape == pytest.approx(0.15)
    assert score.pr_auc == 1
    low = Knows(traces, 0.8)
    assert next(scores("it", [replay_job(lambda: low, traces, traces.jobs[0])])).coverage == 0


def test_jobs_on_the_same_machines_are_in_one_fold(traces: Traces) -> None:
    """Every job is in exactly one."""
    together = replace(traces, families={0: 0, 1: 1, 2: 0})
    assert folds(together, 2) == [[0, 2], [1]]
    assert folds(traces, 5) == [[0], [1], [2]]
