"""What predictors are trained on: what they would have known, and never what they are scored on."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from downpour.base.errors import SpecError
from downpour.predictor import make
from downpour.predictor.features import Array
from downpour.predictor.learned import Trained
from downpour_lab.fitting.scoring import STRESSES, CrossValidation, coverages, judge_all, scores
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
