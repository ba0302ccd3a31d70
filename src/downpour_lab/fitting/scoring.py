"""Scores predictors on traces that they have not seen.

We predict a round at assignment, predict it again when each task is a quarter done, and then
observe it, through the same calls as in a real run. A straggler is a task that takes more than 1.5
times the median of its round.

Models from a file are scored as they are. The others (always the trees, and the rest if we retrain
them) are fitted once per fold, on the jobs of all other folds. Jobs that share machines go into one
fold. Otherwise we would score a predictor on machines that it has seen. A fold may be all jobs of
one kind, which shows how good a predictor is on kinds that it was not trained on.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, TypeAlias, TypeVar

import numpy as np

from downpour.base.errors import SpecError, did_you_mean
from downpour.predictor import MODELS, make
from downpour.predictor.calibration import Online
from downpour.predictor.features import ELAPSED, LEVELS, MEDIAN, Array, Predictor
from downpour.predictor.learned import Trained
from downpour_lab.fitting.training_data import TARGET, Job, Step, Traces, TrainingSet, prepare

if TYPE_CHECKING:
    from downpour_lab.fitting.training import Ensembles, TrainingSettings

SINCE = "since"
_VARIED = 4  # one of this many workers is varied
_EARLIEST, _LATEST = 0.3, 0.6  # when that begins, as a share of the job's rounds
_FACTORS = (1.5, 2.0)  # multiply the seconds of changed workers, in turn


def late_joins(traces: Traces) -> Traces:
    """Return traces in which a quarter of each job's workers join late: we cut off their past."""
    since = _since(traces)
    late = since < 0
    jobs = tuple(
        Job(job.number, tuple(rows[~late[rows]] for rows in job.rounds)) for job in traces.jobs
    )
    return replace(traces, columns={**traces.columns, SINCE: since}, jobs=jobs)


def changed_paces(traces: Traces) -> Traces:
    """Return traces in which a quarter of each job's workers slow down 1.5 or 2 times, for good."""
    since = _since(traces)
    timed = [TARGET, *(f"p{percent}_{ELAPSED}" for percent in traces.percents)]
    worker = traces.columns["worker"].astype(int)
    factor = np.where(since >= 0, np.array(_FACTORS)[worker % len(_FACTORS)], 1.0)
    slower = {name: traces.columns[name] * factor for name in timed}
    since = np.where(since >= 0, since, np.nan)
    return replace(traces, columns={**traces.columns, **slower, SINCE: since})


STRESSES: Mapping[str, Callable[[Traces], Traces]] = MappingProxyType(
    {"joins": late_joins, "paces": changed_paces}
)


def stressed(traces: Traces, name: str) -> Traces:
    """Return the traces made harder; as they are if `name` is empty."""
    if not name:
        return traces
    if name not in STRESSES:
        accepted = f"must be one of {', '.join(STRESSES)}"
        raise SpecError("stress", name, accepted + did_you_mean(name, STRESSES))
    return STRESSES[name](traces)


def _since(traces: Traces) -> Array:
    """Return rounds since each variation began, below 0 before; NaN for workers that don't vary."""
    since = np.full(len(traces.columns[TARGET]), np.nan)
    for job in traces.jobs:
        generator = np.random.default_rng(job.number)
        rows = np.concatenate(job.rounds)
        turn = np.repeat(np.arange(len(job.rounds)), [len(part) for part in job.rounds])
        workers = np.unique(traces.columns["worker"][rows])
        varied = generator.permutation(workers)[: round(len(workers) / _VARIED)]
        first, last = int(_EARLIEST * len(job.rounds)), int(_LATEST * len(job.rounds))
        begins = int(generator.integers(first, max(last, first + 1)))
        here = np.isin(traces.columns["worker"][rows], varied)
        since[rows[here]] = turn[here] - begins
    return since


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
    starts = np.flatnonzero(np.diff(rounds)) + 1
    parts = np.split(seconds, starts)
    return np.concatenate([part / np.median(part) for part in parts])


def _average_precision(late: Array, ratios: Array) -> float:
    """Return the area under the precision-recall curve; NaN if no task was late."""
    from sklearn.metrics import average_precision_score

    return float(average_precision_score(late, ratios)) if late.any() else float("nan")


TREES = "trees"
NAMES = (*MODELS, TREES)
"""Every predictor that we can score: the ones in a model file, and trees."""

Replayed: TypeAlias = Mapping[str, StageOutcomes]
"""The outcomes of one job, by stage."""

_ENSEMBLES = 8
_Judged = TypeVar("_Judged")


@dataclass(frozen=True, slots=True)
class Fitted:
    """The result of fitting on a fold: a model file's arrays, and trees, which no file holds."""

    trained: Trained
    trees: Ensembles | None = None

    def predictor(self, name: str) -> Predictor:
        """Return a new predictor."""
        if name == TREES and self.trees is not None:
            from downpour_lab.fitting.training import Trees

            return Online(Trees(self.trees))
        return make(name, self.trained)


@dataclass(frozen=True, slots=True, kw_only=True)
class CrossValidation:
    """Which predictors to score, and in how many folds; if `settings` is given, we retrain them.

    `by` is a label of jobs: each of its groups gets separate scores. `held_out` is a label whose
    groups are the folds. With `stress`, we score on harder traces (`STRESSES`), but fit on
    the traces as they are.
    """

    names: Sequence[str]
    trained: Trained
    folds: int
    settings: TrainingSettings | None = None
    by: str = ""
    held_out: str = ""
    stress: str = ""

    @property
    def fits(self) -> bool:
        """Whether we fit any predictor."""
        return self.settings is not None or TREES in self.names

    def parts(self, traces: Traces) -> list[list[int]]:
        """Return the folds, as job numbers; a model scored on one fold is fitted on the others."""
        if not self.fits:
            return [[job.number for job in traces.jobs]]
        if self.held_out:
            parts = list(traces.groups(self.held_out).values())
            families = [{traces.families[number] for number in part} for part in parts]
            if sum(map(len, families)) > len(set().union(*families)):  # a family is in two folds
                raise SpecError(
                    "hold-out", self.held_out, "must not separate jobs on equal machines"
                )
        else:
            parts = folds(traces, self.folds)
        if len(parts) < 2:
            raise SpecError(
                "folds", len(parts), "must be 2 or more, with jobs on different machines"
            )
        return parts

    def steps(self, traces: Traces) -> int:
        """Return how often `judge_all` calls its `step`, for a progress bar."""
        steps = len(self.names) * len(traces.jobs)
        parts = len(self.parts(traces)) if self.fits else 0
        steps += 2 * len(traces.jobs) if self.fits else 0
        steps += parts * _ENSEMBLES if TREES in self.names else 0
        return steps + (parts * self.settings.nets * self.settings.epochs if self.settings else 0)


def judge_all(
    traces: Traces,
    validation: CrossValidation,
    judge: Callable[[str, Sequence[Replayed], str], Iterable[_Judged]],
    step: Step = lambda _: None,
) -> list[_Judged]:
    """Replay all jobs in their folds, and collect what `judge` returns per predictor and group."""
    by = validation.by
    groups = traces.groups(by) if by else {"": [job.number for job in traces.jobs]}
    harder = stressed(traces, validation.stress)
    parts = validation.parts(traces)
    training_set = prepare(traces, step=step) if validation.fits else None
    outcomes: dict[str, dict[int, Replayed]] = {n: {} for n in validation.names}
    for part in parts:
        rest = [job.number for job in traces.jobs if job.number not in part]
        fitted = _fitted(validation, training_set, rest, step)
        for name, by_job in outcomes.items():
            for job in (job for job in harder.jobs if job.number in part):
                by_job[job.number] = replay_job(partial(fitted.predictor, name), harder, job)
                step(f"scoring {name}")
    return [
        judged
        for group, numbers in groups.items()
        for name, by_job in outcomes.items()
        for judged in judge(name, [by_job[number] for number in numbers], group)
    ]


def _fitted(
    validation: CrossValidation, training_set: TrainingSet | None, jobs: Sequence[int], step: Step
) -> Fitted:
    trained, trees = validation.trained, None
    if training_set is None:
        return Fitted(trained)
    from downpour_lab.fitting.training import fit_trees, train

    if validation.settings is not None:
        trained = train(training_set, jobs, validation.settings, step)
    if TREES in validation.names:
        trees = fit_trees(training_set.plain.of(jobs), lambda: step("fitting trees"))
    return Fitted(trained, trees)


_OFF = 0.05
_Q90 = LEVELS.index(0.9)
# Tasks, by how many tasks their worker had done since it joined, or since its pace changed.
PERIODS = {"all": (-np.inf, np.inf), "1st": (0, 1), "2nd–5th": (1, 5), "6th–20th": (5, 20),
           "21st–60th": (20, 60)}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Coverage:
    """How honest one predictor is at one stage, for some of a worker's tasks.

    Shares are from 0 to 1. `below` is the share of tasks that stayed below each quantile. `width`
    is the mean log of the ratio of the 90 % to the 10 % quantile. `pinball` is as in `Score`. `off`
    is the share of workers whose tasks stayed below their 90 % quantile more than 5 points too
    often or too seldom.

    Of all tasks, 90 % should stay below their 90 % quantile. The same should hold for the tasks of
    each worker, of a worker that has just joined, and of one whose pace has just changed.
    """

    predictor: str
    stage: str
    group: str
    tasks: str
    count: int
    below: tuple[float, ...]
    width: float
    pinball: float
    off: float


def coverages(
    predictor: str, replayed: Sequence[Mapping[str, StageOutcomes]], group: str = ""
) -> Iterator[Coverage]:
    """Yield the coverage of a predictor over replayed jobs: by stage, then by period."""
    for stage in replayed[0]:
        outcomes = [job[stage] for job in replayed]
        predicted = np.log(np.concatenate([outcome.predicted for outcome in outcomes]))
        times = np.log(np.concatenate([outcome.seconds for outcome in outcomes]))
        since = np.concatenate([outcome.since for outcome in outcomes])
        below = times[:, None] <= predicted
        for tasks, (first, end) in PERIODS.items():
            here = np.ones(len(times), bool) if tasks == "all" else (since >= first) & (since < end)
            if here.any():
                yield Coverage(
                    predictor=predictor,
                    stage=stage,
                    group=group,
                    tasks=tasks,
                    count=int(here.sum()),
                    below=tuple(below[here].mean(axis=0).tolist()),
                    width=float((predicted[here, _Q90] - predicted[here, 0]).mean()),
                    pinball=pinball(times[here], predicted[here]),
                    off=_off(outcomes, below[:, _Q90]) if tasks == "all" else float("nan"),
                )


def _off(outcomes: Sequence[StageOutcomes], below: Array) -> float:
    """Return the share of workers, each in its job, whose coverage is off."""
    parts = [np.unique(outcome.workers, return_inverse=True)[1] for outcome in outcomes]
    starts = np.cumsum([0, *(part.max() + 1 for part in parts)])
    worker = np.concatenate([part + start for part, start in zip(parts, starts, strict=False)])
    share = np.bincount(worker, below) / np.bincount(worker)
    return float(np.mean(np.abs(share - LEVELS[_Q90]) > _OFF))
