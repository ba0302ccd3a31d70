"""Scores predictors: replays every job of a trace with a new predictor.

We predict a round at assignment, predict it again when each task is a quarter done, and then
observe it, through the same calls as in a real run. A straggler is a task that takes more than 1.5
times the median of its round.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from downpour.predictor.base import LEVELS, MEDIAN, Array, Predictor
from downpour.predictor.fitting.stress import SINCE
from downpour.predictor.fitting.traces import Job, Traces

STRAGGLER = 1.5
ASSIGNMENT = "assignment"
_PERCENT = 25
_LEVELS = np.array(LEVELS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """How good one predictor is at one stage, over all tasks of all jobs of a group.

    Shares are from 0 to 1. `pinball` is the mean over the quantiles, of log seconds. `coverage` is
    the share of tasks that stayed below their 90 % quantile. `microseconds` is the cost of one
    prediction, including learning, if we predict a round at once.
    """

    predictor: str
    stage: str
    group: str
    mape: float
    pinball: float
    coverage: float
    precision: float
    recall: float
    pr_auc: float
    microseconds: float


@dataclass(frozen=True, slots=True)
class StageOutcomes:
    """Predictions and outcomes, one row per task; `rounds` are numbers within the job.

    `since` counts the tasks that a row's worker had before. In stressed traces, it counts from the
    moment that the worker was varied, and is NaN for the other workers.
    """

    predicted: Array  # (rows, 4)
    seconds: Array
    rounds: Array
    workers: Array
    since: Array
    cost_seconds: float


def replay_job(make: Callable[[], Predictor], traces: Traces, job: Job) -> dict[str, StageOutcomes]:
    """Replay one job with a new predictor, and return the outcomes by stage."""
    predictor = make()
    stages = _stages(traces)
    predicted: dict[str, list[Array]] = {stage: [] for stage in stages}
    costs = dict.fromkeys(stages, 0.0)
    for rows in job.rounds:
        workers = traces.workers(rows)
        for stage, percents in stages.items():
            requests = list(zip(workers, traces.features(rows, percents), strict=True))
            # We count processor time, so that other work on the machine does not count.
            began = time.thread_time()
            answers = predictor.predict_many(requests)
            costs[stage] += time.thread_time() - began
            predicted[stage].append(np.array([answer.quantiles for answer in answers]))
        tasks = traces.features(rows, traces.percents)
        for worker, features, seconds in zip(workers, tasks, traces.seconds(rows), strict=True):
            predictor.observe(worker, features, float(seconds))
    every = np.concatenate(job.rounds)
    workers = traces.columns["worker"][every]
    rounds = np.repeat(np.arange(len(job.rounds)), [len(rows) for rows in job.rounds])
    since = traces.columns[SINCE][every] if SINCE in traces.columns else _tasks_before(workers)
    return {
        stage: StageOutcomes(
            np.concatenate(parts), traces.seconds(every), rounds, workers, since, costs[stage]
        )
        for stage, parts in predicted.items()
    }


def scores(
    predictor: str, replayed: Sequence[Mapping[str, StageOutcomes]], group: str = ""
) -> Iterator[Score]:
    """Yield the scores of a predictor over replayed jobs, one per stage."""
    for stage in replayed[0]:
        outcomes = [job[stage] for job in replayed]
        predicted = np.concatenate([outcome.predicted for outcome in outcomes])
        seconds = np.concatenate([outcome.seconds for outcome in outcomes])
        ratios = np.concatenate([_ratios(o.predicted[:, MEDIAN], o.rounds) for o in outcomes])
        late = np.concatenate([_ratios(o.seconds, o.rounds) for o in outcomes]) > STRAGGLER
        alarm = ratios > STRAGGLER
        hits = float((alarm & late).sum())
        yield Score(
            predictor=predictor,
            stage=stage,
            group=group,
            mape=float(np.mean(np.abs(predicted[:, MEDIAN] / seconds - 1))),
            pinball=pinball(np.log(seconds), np.log(predicted)),
            coverage=float(np.mean(seconds <= predicted[:, 2])),
            precision=hits / max(1.0, float(alarm.sum())),
            recall=hits / max(1.0, float(late.sum())),
            pr_auc=_average_precision(late, ratios),
            microseconds=sum(o.cost_seconds for o in outcomes) / len(seconds) * 1e6,
        )


def pinball(times: Array, predicted: Array) -> float:
    """Return the mean pinball loss of quantiles (rows, 4), both in log seconds."""
    errors = times[:, None] - predicted
    return float(np.maximum(_LEVELS * errors, (_LEVELS - 1) * errors).mean())


def folds(traces: Traces, count: int) -> list[list[int]]:
    """Deal the jobs into `count` folds; jobs that share machines go into the same fold."""
    dealt: list[list[int]] = [[] for _ in range(count)]
    for job in traces.jobs:
        dealt[traces.families[job.number] % count].append(job.number)
    return [fold for fold in dealt if fold]


def _stages(traces: Traces) -> dict[str, tuple[int, ...]]:
    """Return which reports are known at each stage."""
    stages: dict[str, tuple[int, ...]] = {ASSIGNMENT: ()}
    known = tuple(percent for percent in traces.percents if percent <= _PERCENT)
    if known:
        stages[f"{known[-1]} %"] = known
    return stages


def _tasks_before(workers: Array) -> Array:
    """Return, for each row, how many earlier rows belong to the same worker."""
    before = np.zeros(len(workers))
    for worker in np.unique(workers):
        here = workers == worker
        before[here] = np.arange(here.sum())
    return before


def _ratios(seconds: Array, rounds: Array) -> Array:
    """Return seconds over the median of their round."""
    starts = np.flatnonzero(np.diff(rounds)) + 1
    parts = np.split(seconds, starts)
    return np.concatenate([part / np.median(part) for part in parts])


def _average_precision(late: Array, ratios: Array) -> float:
    """Return the area under the precision-recall curve; NaN if no task was late."""
    from sklearn.metrics import average_precision_score

    return float(average_precision_score(late, ratios)) if late.any() else float("nan")
