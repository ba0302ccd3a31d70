"""Nothing is scored on what it was fitted on."""

from __future__ import annotations

from dataclasses import replace

import pytest

from downpour.base.errors import SpecError
from downpour.predictor.learned import Trained
from downpour_lab.fitting.scoring import STRESSES, CrossValidation, coverages, judge_all, scores
from downpour_lab.fitting.training_data import Traces
from tests.predictor.conftest import TINY


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
