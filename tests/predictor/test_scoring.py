"""Scores are what their names say, and nothing is scored on what it was fitted on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from downpour.errors import SpecError
from downpour.predictor.base import Array, Features, Quantiles, Request
from downpour.predictor.examination import Examination, examine
from downpour.predictor.files import Trained
from downpour.predictor.lessons import Lessons, varied
from downpour.predictor.scoring import folds, judge, live
from downpour.predictor.traces import Traces
from tests.predictor.conftest import TINY, WORKERS


class Knows:
    """A predictor that was told the outcomes, and is off by a factor; it remembers its calls."""

    def __init__(self, traces: Traces, factor: float) -> None:
        self.told = iter(
            np.repeat([traces.seconds(rows) for rows in traces.jobs[0].rounds], 2, axis=0)
        )
        self.factor = factor
        self.observed: list[tuple[str, float]] = []

    def predict(self, worker: str, features: Features) -> Quantiles:
        """Never asked."""
        raise NotImplementedError

    def predict_many(self, requests: Sequence[Request]) -> list[Quantiles]:
        """Tell what will be."""
        outcome = next(self.told)[: len(requests)] * self.factor
        return [Quantiles(*(seconds * np.array([0.9, 1, 1.1, 1.2]))) for seconds in outcome]

    def observe(self, worker: str, features: Features, seconds: float) -> None:
        """Remember."""
        self.observed.append((worker, features["p25_elapsed_s"] / seconds))


def test_who_knows_everything_is_never_wrong(traces: Traces) -> None:
    """And who is a tenth above the truth has an error of 10 % and still ranks all rightly."""
    perfect = Knows(traces, 1.0)
    scores = list(judge("it", [live(lambda: perfect, traces, traces.jobs[0])]))
    assert [score.stage for score in scores] == ["assignment", "25 %"]
    for score in scores:
        assert score.mape == pytest.approx(0)
        assert score.coverage == 1
        assert (score.precision, score.recall, score.pr_auc) == (1, 1, 1)
    assert len(perfect.observed) == 12 * WORKERS
    off = Knows(traces, 1.15)
    score = next(judge("it", [live(lambda: off, traces, traces.jobs[0])]))
    assert score.mape == pytest.approx(0.15)
    assert score.pr_auc == 1
    low = Knows(traces, 0.8)
    assert next(judge("it", [live(lambda: low, traces, traces.jobs[0])])).coverage == 0


def test_jobs_on_the_same_machines_are_in_one_fold(traces: Traces) -> None:
    """Every job is in exactly one."""
    together = replace(traces, families={0: 0, 1: 1, 2: 0})
    assert folds(together, 2) == [[0, 2], [1]]
    assert folds(traces, 5) == [[0], [1], [2]]


def test_all_predictors_are_scored(traces: Traces, trained: Trained) -> None:
    """Two stages each, as many steps as were announced, and fitted ones on other jobs."""
    for names, settings in ((["ewma", "trees", "lstm"], TINY), (["ewma"], None)):
        examination = Examination(names=names, trained=trained, folds=3, settings=settings)
        steps: list[str] = []
        scores = examine(traces, examination, steps.append)
        assert [score.predictor for score in scores] == [name for name in names for _ in range(2)]
        assert all(0 < score.mape < 1 and 0 <= score.pr_auc <= 1 for score in scores)
        assert len(steps) == examination.steps(traces)


def test_one_family_of_jobs_cannot_be_cut_in_two(traces: Traces, trained: Trained) -> None:
    """There would be nothing to fit on."""
    one = replace(traces, families=dict.fromkeys(traces.families, 0))
    with pytest.raises(SpecError, match="must be 2 or more"):
        examine(one, Examination(names=["trees"], trained=trained, folds=3))


def test_lessons_tell_what_came_of_each_description(traces: Traces, lessons: Lessons) -> None:
    """The target puts the expected time right; nothing is usable before anything is known."""
    reported = lessons.share > 0
    whole = np.log(
        lessons.elapsed + (1 - lessons.share) * np.exp(lessons.expected + lessons.target)
    )
    found: Array = whole[lessons.usable]
    seconds = np.broadcast_to(lessons.seconds[..., None], whole.shape)[lessons.usable]
    assert found == pytest.approx(np.log(seconds), abs=1e-4)
    assert not lessons.usable[:, 0, ~reported].any()
    assert lessons.usable[:, 1:].all()
    assert lessons.usable[:, 0, reported].all()
    assert len(lessons.of([1]).seconds) == len(lessons.seconds) / len(traces.jobs)


def test_varied_traces_leave_the_time_a_sample_alone(traces: Traces) -> None:
    """Sizes change with times, states by themselves; the original stays as it is."""
    before = traces.columns["loadavg1"].copy()
    other = varied(traces, 3)
    assert not np.array_equal(before, other.columns["loadavg1"])
    assert not np.array_equal(traces.columns["n_samples"], other.columns["n_samples"])
    for name in ("completion_s", "p25_elapsed_s"):
        paces = [told.columns[name] / told.columns["n_samples"] for told in (traces, other)]
        assert paces[0] == pytest.approx(paces[1])
    assert np.array_equal(before, traces.columns["loadavg1"])
