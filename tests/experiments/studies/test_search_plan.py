"""What has ended is never run again, and a search goes on as it would have gone on anyway."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from downpour.base.errors import ExperimentFailed, SpecError
from downpour.base.states import Goal
from downpour.core.resolve import resolve
from downpour.core.spec import Spec
from downpour.experiments.studies import Search, StudyFolder
from downpour.experiments.studies.folder import BEST_NAME
from downpour.experiments.studies.running import measured_in, run_study
from downpour.experiments.studies.search import SearchPlan
from downpour.record.record import line_text
from downpour.record.record_lines import EvaluatedLine, SubmittedLine
from downpour.record.study_result import SearchResult, SearchRun
from tests.experiments.studies.conftest import (
    SEARCH,
    FakeBackend,
    Interruption,
    Silence,
    search_folder,
)

RUNS = 12
HALVING = SEARCH.replace('"median", startup_trials = 3', '"halving", factor = 2')


def result_of(folder: StudyFolder[Search]) -> SearchResult:
    """Return the runs that have ended."""
    return SearchPlan(folder.study, folder.ended()).result


def searched(folder: StudyFolder[Search], backend: FakeBackend) -> SearchResult:
    """Run a search; returns its runs."""
    run_study(folder, backend, Silence())
    return result_of(folder)


def without_clock(result: SearchResult) -> list[SearchRun]:
    """Return the runs but for how long they took."""
    return [replace(run, wall_seconds=0.0, train_seconds=0.0) for run in result.runs]


@pytest.fixture(scope="module", params=[SEARCH, HALVING], ids=["median", "halving"])
def uninterrupted(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> StudyFolder[Search]:
    """The small search, run in one go."""
    folder = search_folder(tmp_path_factory.mktemp("uninterrupted"), request.param)
    searched(folder, FakeBackend())
    return folder


@pytest.mark.slow
@settings(max_examples=5, deadline=None)
@given(interrupted_at=st.sets(st.integers(1, RUNS + 6)), late=st.integers(0, 4))
def test_a_resumed_search_equals_an_uninterrupted_one(
    uninterrupted: StudyFolder[Search], interrupted_at: set[int], late: int
) -> None:
    """Cut off in any runs, pruned soon or late: the same runs, and none trained twice."""
    with tempfile.TemporaryDirectory() as path:
        folder = StudyFolder(Path(path) / "small", uninterrupted.study)
        backend = FakeBackend(interrupted_at, late=late)
        while True:
            try:
                result = searched(folder, backend)
                break
            except Interruption:
                assert len(result_of(folder).runs) == len(backend.trained)
        assert len(backend.trained) == RUNS
        assert without_clock(result) == without_clock(result_of(uninterrupted))
        best, other = (each.path / BEST_NAME for each in (folder, uninterrupted))
        assert best.read_text() == other.read_text()


def test_what_falls_behind_is_pruned(uninterrupted: StudyFolder[Search], tmp_path: Path) -> None:
    """It trains fewer epochs, tells when it was ended, and is never the best."""
    result = result_of(uninterrupted)
    pruned = [run for run in result.runs if run.state == "pruned"]
    assert 0 < len(pruned) < RUNS
    for run in pruned:
        epochs = len(run.epoch_values)
        assert epochs < 4
        assert run.reason == f"pruned after epoch {epochs} of 4"
        assert run.value == run.epoch_values[-1]
    assert result.best is not None
    assert result.best.state == "finished"
    backend = FakeBackend()
    searched(StudyFolder(tmp_path / "small", uninterrupted.study), backend)
    assert backend.epochs == sum(len(run.epoch_values) for run in result.runs)


def test_without_a_pruner_all_go_on(tmp_path: Path) -> None:
    """Every run has every epoch."""
    text = SEARCH.replace('{ name = "median", startup_trials = 3 }', '"none"')
    backend = FakeBackend()
    result = searched(search_folder(tmp_path, text), backend)
    assert backend.epochs == 4 * RUNS
    assert {run.state for run in result.runs} == {"finished"}


@pytest.mark.slow
def test_the_search_comes_near_what_is_best(tmp_path: Path) -> None:
    """In sixty runs the sampler has found the learning rate and the batch size."""
    text = SEARCH.replace("trials = 12", "trials = 60")
    best = searched(search_folder(tmp_path, text), FakeBackend()).best
    assert best is not None
    assert 0.01 < best.values["learning_rate"] < 0.1
    assert best.values["batch_size"] == 32
    late = result_of(search_folder(tmp_path, text)).runs[-20:]
    assert sum(0.003 < run.values["learning_rate"] < 0.3 for run in late) >= 12


@pytest.mark.slow
def test_a_search_for_the_loss_looks_for_the_lowest(tmp_path: Path) -> None:
    """It falls where the accuracy rises, so the same settings win; a failed run is no good one."""
    text = SEARCH.replace("trials = 12", 'trials = 60\nobjective = "loss"')
    folder = search_folder(tmp_path, text)
    best = searched(folder, FakeBackend(hopeless={2})).best
    assert best is not None
    assert 0.01 < best.values["learning_rate"] < 0.1
    result = result_of(folder)
    finished = [run.value for run in result.runs if run.state == "finished"]
    assert best.value == min(value for value in finished if value is not None)
    assert result.best_so_far[-1] == (60, best.value)
    told = result.to_dict()
    assert told["objective"] == "loss"
    assert told["trials"][-1]["loss"] == result.runs[-1].value
    assert f"run {best.number} with {best.value:.4f}" in str(result)


def test_a_search_for_what_is_not_measured_ends_at_the_first_epoch(tmp_path: Path) -> None:
    """The line names what is."""
    text = SEARCH.replace("trials = 12", 'trials = 12\nobjective = "loss"')
    study = replace(Search.from_toml(text), goal=Goal.of("bleu"))
    folder = StudyFolder(tmp_path / "small", study)
    with pytest.raises(SpecError, match=r"objective = 'bleu': .* known: accuracy, loss$"):
        searched(folder, FakeBackend())


def test_the_best_spec_is_ready_to_run(uninterrupted: StudyFolder[Search]) -> None:
    """It has the best run's values in full, and the search's name."""
    spec = Spec.from_toml((uninterrupted.path / BEST_NAME).read_text())
    best = result_of(uninterrupted).best
    assert best is not None
    assert uninterrupted.study.values_of(spec) == best.values
    assert (spec.name, spec.shards) == ("small", 2)


def test_a_run_that_fails_costs_only_itself(tmp_path: Path) -> None:
    """It is kept with its reason and not run again; the others are run all the same."""
    folder = search_folder(tmp_path)
    result = searched(folder, FakeBackend(hopeless={1, 4}, wrong={6}))
    failed = {run.number: run.reason for run in result.runs if run.state == "failed"}
    assert failed == {1: "no luck", 4: "no luck", 6: "no luck"}
    assert result.best is not None
    again = FakeBackend()
    assert searched(folder, again) == result
    assert (again.trained, again.starts) == ([], 0)


def test_a_run_of_bad_luck_is_tried_again(tmp_path: Path) -> None:
    """With the same values, in its place, once the search goes on; nothing else is run again."""
    folder = search_folder(tmp_path)
    before = searched(folder, FakeBackend(unlucky={3, 5}, hopeless={7}))
    assert [run.number for run in before.runs if run.to_repeat] == [3, 5]
    assert str(before).startswith("small: 10 of 12 runs")
    assert "1 failed, 2 to repeat (run 3: no luck)" in str(before)
    again = FakeBackend(unlucky={2})
    after = searched(folder, again)
    assert [folder.study.values_of(run.spec) for run in again.trained] == [
        before.runs[2].values,
        before.runs[4].values,
    ]
    assert [run.number for run in after.runs if run.to_repeat] == [5]
    others = [run for run in before.runs if run.number not in (3, 5)]
    assert [run for run in after.runs if run.number not in (3, 5)] == others
    searched(folder, FakeBackend())
    assert result_of(folder).left == 0
    assert [t.number for t in result_of(folder).runs if t.state == "failed"] == [7]


def test_a_run_that_another_client_cancels_is_run_again(tmp_path: Path) -> None:
    """It says nothing about its values, so it counts for nothing."""
    folder = search_folder(tmp_path)
    with pytest.raises(ExperimentFailed, match="cancelled"):
        searched(folder, FakeBackend(stolen={3}))
    assert [run.number for run in result_of(folder).runs] == [1, 2]
    assert len(searched(folder, FakeBackend()).runs) == RUNS


def test_a_search_that_has_grown_runs_only_what_is_new(tmp_path: Path) -> None:
    """More runs go on from those that there are."""
    before = searched(search_folder(tmp_path), FakeBackend())
    grown = search_folder(tmp_path, SEARCH.replace("trials = 12", "trials = 14"))
    backend = FakeBackend()
    after = searched(grown, backend)
    assert len(backend.trained) == 2
    assert after.runs[:RUNS] == before.runs


def test_epochs_are_counted_by_the_resolved_spec() -> None:
    """The spec of a run may leave `meet` open; its record has the number of rounds an epoch."""
    spec = {**resolve(Spec(meet="auto", shards=2), None).model_dump(mode="json")}
    begun = SubmittedLine(experiment="a-1", name="a", spec=spec, version="", shards=2)
    measured = EvaluatedLine(round=3, loss=0.5, metrics={}, class_accuracy=(), seconds=0.1)
    lines = [line_text(0.0, begun), line_text(1.0, measured)]
    assert list(measured_in(lines, 1)) == [(2, {"loss": 0.5})]
    assert list(measured_in(lines, 2)) == []
