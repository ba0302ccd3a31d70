"""Coverage is counted for all tasks, for each worker, and for what a worker has just begun."""

from __future__ import annotations

import numpy as np
import pytest

from downpour.predictor.features import LEVELS, Array
from downpour_lab.fitting.scoring import Coverage, StageOutcomes, coverages

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
