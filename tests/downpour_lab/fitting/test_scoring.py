"""Scores and coverage are what their names say, and traces are made harder as they are."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from downpour.base.errors import SpecError
from downpour.base.values import Forecast
from downpour.predictor.features import LEVELS, Array, Features, Request
from downpour_lab.fitting.scoring import (
    SINCE,
    STRESSES,
    Coverage,
    StageOutcomes,
    coverages,
    folds,
    replay_job,
    scores,
    stressed,
)
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


TASKS = 400


def outcomes(noise: Array, workers: Array, since: Array) -> StageOutcomes:
    """Return tasks around a second, whose quantiles were predicted for noise of a tenth."""
    quantiles = np.exp([-0.1282, 0.0, 0.1282, 0.2054])
    return StageOutcomes(
        predicted=np.tile(quantiles, (len(noise), 1)),
        seconds=np.exp(noise),
        rounds=np.arange(len(noise)),
        workers=workers,
        since=since,
        cost_seconds=0.0,
    )


def counted(*jobs: StageOutcomes) -> dict[str, Coverage]:
    """Return what is counted, by the name of the tasks."""
    return {one.tasks: one for one in coverages("it", [{"assignment": job} for job in jobs])}


def test_an_average_forecast_misses_each_worker() -> None:
    """A worker is too slow by as much as another is too fast: over all, half are above a median."""
    noise = np.random.default_rng(0).normal(0, 0.1, 2 * TASKS)
    workers = np.repeat([4, 7], TASKS)
    honest = counted(outcomes(noise, workers, np.full(2 * TASKS, np.nan)))
    assert list(honest) == ["all"]
    assert honest["all"].below == pytest.approx(LEVELS, abs=0.03)
    assert honest["all"].width == pytest.approx(0.2564)
    assert honest["all"].off == 0
    shifted = noise + np.where(workers == 4, 0.1, -0.1)
    unfair = counted(outcomes(shifted, workers, np.full(2 * TASKS, np.nan)))
    assert unfair["all"].below[1] == pytest.approx(0.5, abs=0.03)
    assert unfair["all"].off == 1
    assert unfair["all"].pinball > honest["all"].pinball


def test_workers_of_the_same_name_in_two_jobs_are_two() -> None:
    """One job's is off, the other's is not."""
    noise = np.random.default_rng(0).normal(0, 0.1, TASKS)
    one = np.full(TASKS, 3)
    unknown = np.full(TASKS, np.nan)
    found = counted(outcomes(noise, one, unknown), outcomes(noise + 0.1, one, unknown))
    assert found["all"].off == pytest.approx(0.5)
    assert found["all"].count == 2 * TASKS


def test_new_tasks_are_counted_apart() -> None:
    """A worker's first task is far above all quantiles, its later ones below."""
    since = np.array([np.nan, np.nan, 0, 1, 2, 3, 4, 5, 19, 20])
    noise = np.where(since == 0, 1.0, -1.0)
    found = counted(outcomes(noise, np.zeros(10), since))
    counts = [found[name].count for name in ("all", "1st", "2nd–5th", "6th–20th", "21st–60th")]
    assert counts == [10, 1, 4, 2, 1]
    assert list(found["1st"].below) == [0, 0, 0, 0]
    assert list(found["2nd–5th"].below) == [1, 1, 1, 1]
    assert np.isnan(found["1st"].off)


def test_some_workers_join_late_and_nothing_else_changes(traces: Traces) -> None:
    """One or two of six in each job, some rounds after the others; what is left is as recorded."""
    harder = stressed(traces, "joins")
    for job, before in zip(harder.jobs, traces.jobs, strict=True):
        seen = [set(harder.workers(rows)) for rows in job.rounds]
        assert len(seen[0]) < WORKERS == len(seen[-1])
        late = seen[-1] - seen[0]
        first = next(turn for turn, workers in enumerate(seen) if workers & late)
        assert 3 <= first <= 7
        since = harder.columns[SINCE][job.rounds[first]]
        assert sorted(since[np.isfinite(since)]) == [0.0] * len(late)
        assert set(np.concatenate(job.rounds)) < set(np.concatenate(before.rounds))
    assert harder.columns["completion_s"] is traces.columns["completion_s"]


def test_some_workers_slow_down_for_good(traces: Traces) -> None:
    """Their tasks and reports take 1.5 or 2 times as long from a round on."""
    harder = stressed(traces, "paces")
    since = harder.columns[SINCE]
    changed = np.isfinite(since)
    assert (since[changed] >= 0).all()
    for name in ("completion_s", "p10_elapsed_s", "p25_elapsed_s"):
        factor = harder.columns[name] / traces.columns[name]
        assert set(np.round(factor[changed], 6)) <= {1.5, 2.0}
        assert (factor[~changed] == 1).all()
    for job in harder.jobs:
        last = since[job.rounds[-1]]
        assert 0 < np.isfinite(last).sum() < WORKERS
        assert not np.isfinite(since[job.rounds[0]]).any()


@pytest.mark.parametrize("name", STRESSES)
def test_it_is_the_same_each_time_and_the_traces_stay_as_they_were(
    name: str, traces: Traces
) -> None:
    """So that predictors are scored on the same tasks."""
    before = traces.checksum()
    assert stressed(traces, name).checksum() == stressed(traces, name).checksum() != before
    assert traces.checksum() == before
    assert stressed(traces, "") is traces


def test_a_name_that_is_none_is_refused(traces: Traces) -> None:
    """The message names those there are."""
    with pytest.raises(SpecError, match="must be one of joins, paces"):
        stressed(traces, "sleep")
