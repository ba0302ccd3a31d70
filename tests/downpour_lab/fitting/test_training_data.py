"""Traces, what predictors are trained on, and how they are scored."""

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from downpour.base.errors import SpecError
from downpour.base.values import Forecast
from downpour.predictor import make
from downpour.predictor.features import LEVELS, Array, Features, Request
from downpour.predictor.learned import Trained
from downpour_lab.fitting.scoring import (
    SINCE,
    STRESSES,
    Coverage,
    CrossValidation,
    StageOutcomes,
    coverages,
    folds,
    judge_all,
    replay_job,
    scores,
    stressed,
)
from downpour_lab.fitting.training import train
from downpour_lab.fitting.training_data import (
    REQUIRED,
    TaskSequences,
    Traces,
    augment,
    prepare,
    read_traces,
)
from tests.predictor.conftest import TINY, WORKERS, columns, write


def test_sequences_tell_what_came_of_each_description(
    traces: Traces, sequences: TaskSequences
) -> None:
    """The target puts the expected time right; nothing is usable before anything is known."""
    reported = sequences.share > 0
    whole = np.log(
        sequences.elapsed + (1 - sequences.share) * np.exp(sequences.expected + sequences.target)
    )
    found: Array = whole[sequences.usable]
    seconds = np.broadcast_to(sequences.seconds[..., None], whole.shape)[sequences.usable]
    assert found == pytest.approx(np.log(seconds), abs=1e-4)
    assert not sequences.usable[:, 0, ~reported].any()
    assert sequences.usable[:, 1:].all()
    assert sequences.usable[:, 0, reported].all()
    assert len(sequences.of([1]).seconds) == len(sequences.seconds) / len(traces.jobs)


def paces(traces: Traces, name: str) -> Array:
    """Return the seconds a sample, by job, round and worker."""
    rates: Array = traces.columns[name] / traces.columns["n_samples"]
    return rates.reshape(len(traces.jobs), -1, WORKERS)


def test_augmented_traces_leave_the_time_a_sample_alone(traces: Traces) -> None:
    """Sizes change with times, states by themselves; the original stays as it is."""
    before = traces.columns["loadavg1"].copy()
    other = augment(traces, 3)
    assert not np.array_equal(before, other.columns["loadavg1"])
    assert not np.array_equal(traces.columns["n_samples"], other.columns["n_samples"])
    for name in ("completion_s", "p25_elapsed_s"):
        assert paces(other, name) == pytest.approx(paces(traces, name))
    assert np.array_equal(before, traces.columns["loadavg1"])


def test_in_augmented_traces_some_workers_change_their_pace_for_good(traces: Traces) -> None:
    """All that such a worker reports takes longer by one factor, from some round to the last."""
    shares = []
    for seed in range(10):
        other = augment(traces, seed)
        factor = paces(other, "completion_s") / paces(traces, "completion_s")
        reported = paces(other, "p25_elapsed_s") / paces(traces, "p25_elapsed_s")
        assert reported == pytest.approx(factor)
        changed = ~np.isclose(factor, 1)
        assert np.isclose(factor[:, 1:], factor[:, :-1])[changed[:, :-1]].all()
        shares.append(changed.any(axis=1).mean())
    assert 0 < np.mean(shares) < 0.25


@pytest.mark.slow
@pytest.mark.usefixtures("few_trees")
def test_all_predictors_are_scored(traces: Traces, trained: Trained) -> None:
    """Two stages each, as many steps as were announced, and fitted ones on other jobs."""
    for names, settings in ((["ewma", "trees", "lstm"], TINY), (["ewma"], None)):
        validation = CrossValidation(names=names, trained=trained, folds=3, settings=settings)
        steps: list[str] = []
        found = judge_all(traces, validation, scores, steps.append)
        assert [score.predictor for score in found] == [name for name in names for _ in range(2)]
        assert all(0 < score.mape < 1 and 0 <= score.pr_auc <= 1 for score in found)
        assert len(steps) == validation.steps(traces)


@pytest.mark.usefixtures("few_trees")
@pytest.mark.parametrize("stress", STRESSES)
def test_harder_traces_are_scored_and_not_fitted_on(
    stress: str, traces: Traces, trained: Trained
) -> None:
    """What is fitted is the same, each joined or changed worker's tasks are counted from there."""
    names = ["trees", "lstm", "selector"]
    harder = CrossValidation(names=names, trained=trained, folds=3, stress=stress)
    found = judge_all(traces, harder, coverages)
    assert [one.predictor for one in found if one.tasks == "1st"] == sorted(
        2 * names, key=names.index
    )
    assert all(0 <= share <= 1 for one in found for share in one.below)


def test_one_family_of_jobs_cannot_be_cut_in_two(traces: Traces, trained: Trained) -> None:
    """There would be nothing to fit on."""
    one = replace(traces, families=dict.fromkeys(traces.families, 0))
    with pytest.raises(SpecError, match="must be 2 or more"):
        judge_all(one, CrossValidation(names=["trees"], trained=trained, folds=3), scores)


@pytest.mark.usefixtures("few_trees")
def test_trees_are_scored_on_traces_without_reports(trained: Trained, tmp_path: Path) -> None:
    """They have a single stage, with as many steps as were announced."""
    told = {column: values for column, values in columns().items() if column in REQUIRED}
    bare = read_traces(write(tmp_path / "bare.npz", told))
    validation = CrossValidation(names=["trees"], trained=trained, folds=3)
    steps: list[str] = []
    assert [score.stage for score in judge_all(bare, validation, scores, steps.append)] == [
        "assignment"
    ]
    assert len(steps) == validation.steps(bare)


@pytest.mark.parametrize("name", ["ridge", "lstm"])
def test_traces_without_reports_train_a_predictor(name: str, tmp_path: Path) -> None:
    """It predicts at assignment; after a report it extrapolates, in rising quantiles."""
    told = {column: values for column, values in columns().items() if column in REQUIRED}
    trained = train(prepare(read_traces(write(tmp_path / "bare.npz", told))), [0, 1, 2], TINY)
    predictor = make(name, trained)
    for _ in range(3):
        predictor.observe("w", {"n_samples": 3200.0}, 10.0)
    assert 4 < predictor.predict("w", {"n_samples": 3200.0}).q50 < 25
    late = predictor.predict("w", {"n_samples": 3200.0, "p25_elapsed_s": 10.0})
    assert list(late.quantiles) == sorted(late.quantiles)
    assert late.q50 == pytest.approx(40, rel=0.3)


COMMITTED = Path(__file__).parents[3] / "traces" / "traces.npz"


def refusal(path: Path) -> str:
    """Return the line with which a trace is refused."""
    with pytest.raises(SpecError) as caught:
        read_traces(path)
    assert "\n" not in str(caught.value)
    assert caught.value.exit_status == 2
    return str(caught.value)


def test_rows_may_come_in_any_order(traces: Traces, tmp_path: Path) -> None:
    """Jobs and rounds are put together again."""
    order = np.random.default_rng(0).permutation(len(columns()["job"]))
    mixed = read_traces(write(tmp_path / "a.npz", {n: c[order] for n, c in columns().items()}))
    assert [job.number for job in mixed.jobs] == [0, 1, 2]
    for one, other in zip(mixed.jobs, traces.jobs, strict=True):
        for rows, expected in zip(one.rounds, other.rounds, strict=True):
            assert sorted(mixed.seconds(rows)) == sorted(traces.seconds(expected))
    assert mixed.percents == (10, 25)


def test_features_tell_no_more_than_was_known(traces: Traces) -> None:
    """Neither later reports nor the outcome."""
    names = set(traces.features(traces.jobs[0].rounds[0], (10,))[0])
    assert "p10_elapsed_s" in names
    assert not {name for name in names if name.startswith("p25") or name == "completion_s"}


@pytest.mark.parametrize("name", ["job", "worker", "n_samples", "completion_s"])
def test_a_missing_column_is_named(name: str, tmp_path: Path) -> None:
    """The line says which."""
    told = columns()
    del told[name]
    assert refusal(write(tmp_path / "t.npz", told)).endswith(f"has no column {name}")


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("completion_s", -1.0, "column completion_s holds -1; must be above 0"),
        ("completion_s", math.nan, "column completion_s holds a value that is not finite"),
        ("p10_elapsed_s", -2.0, "column p10_elapsed_s holds -2; must be 0 or above"),
        ("n_samples", 0.0, "column n_samples holds 0; must be above 0"),
        ("cpu_util", math.inf, "column cpu_util holds a value that is not finite"),
    ],
)
def test_a_value_that_cannot_be_is_named_with_its_column(
    name: str, value: float, said: str, tmp_path: Path
) -> None:
    """Negative seconds above all."""
    told = columns()
    told[name] = told[name].astype(float)
    told[name][5] = value
    assert refusal(write(tmp_path / "t.npz", told)).endswith(said)


def test_state_may_be_missing(tmp_path: Path) -> None:
    """Not every machine tells everything."""
    told = columns()
    told["iowait"][:] = math.nan
    assert read_traces(write(tmp_path / "t.npz", told)).jobs


def test_a_file_without_a_trace_is_refused_in_one_line(tmp_path: Path) -> None:
    """Nothing there, not a zip file, a cut one, columns of other shapes, no rows."""
    assert "no such file" in refusal(tmp_path / "none.npz")
    text = tmp_path / "text.npz"
    text.write_text("job,round\n")
    assert "is not an .npz file" in refusal(text)
    whole = write(tmp_path / "whole.npz", columns()).read_bytes()
    cut = tmp_path / "cut.npz"
    cut.write_bytes(whole[: len(whole) // 2])
    assert "is not an .npz file" in refusal(cut)
    short = columns() | {"iowait": np.zeros(3)}
    assert "column iowait has 3 rows" in refusal(write(tmp_path / "short.npz", short))
    square = columns() | {"iowait": np.zeros((3, 3))}
    assert "must be one list of numbers" in refusal(write(tmp_path / "square.npz", square))
    empty = {name: column[:0] for name, column in columns().items()}
    assert "has no rows" in refusal(write(tmp_path / "empty.npz", empty))


def test_jobs_of_one_seed_are_one_family(tmp_path: Path) -> None:
    """They ran on the same machines; jobs without a label are families of their own."""
    path = write(tmp_path / "t.npz", columns(jobs=4))
    told = [{"job": job, "scenario": "calm", "seed": job // 2} for job in range(3)]
    (tmp_path / "jobs.json").write_text(json.dumps(told))
    assert read_traces(path).families == {0: 0, 1: 0, 2: 1, 3: 2}
    (tmp_path / "jobs.json").write_text('[{"job": 0}]')
    assert "jobs.json" in refusal(path)


def test_the_committed_traces_are_whole() -> None:
    """36 jobs in 12 families, with reports at 10, 25 and 50 %."""
    traces = read_traces(COMMITTED)
    assert (len(traces.jobs), len(set(traces.families.values()))) == (36, 12)
    assert traces.percents == (10, 25, 50)


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
