"""What has ended is never run again, and a search goes on as it would have gone on anyway."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from downpour.errors import ExperimentFailed, SpecError
from downpour.reports.tuned import Trial, Tuned
from downpour.spec import Spec
from downpour.studies.search_folder import Folder
from downpour.studies.search_runner import run_search
from tests.studies.conftest import Interruption
from tests.studies.searching import SEARCH, FakeTrainer, Silence, folder_in

TRIALS = 12
HALVING = SEARCH.replace('"median", startup_trials = 3', '"halving", factor = 2')


def without_clock(tuned: Tuned) -> list[Trial]:
    """Return the trials but for how long they took."""
    return [replace(trial, wall_seconds=0.0, train_seconds=0.0) for trial in tuned.trials]


@pytest.fixture(scope="module", params=[SEARCH, HALVING], ids=["median", "halving"])
def uninterrupted(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Folder:
    """The small search, run in one go."""
    folder = folder_in(tmp_path_factory.mktemp("uninterrupted"), request.param)
    run_search(folder, FakeTrainer(), Silence())
    return folder


@settings(max_examples=5, deadline=None)
@given(interrupted_at=st.sets(st.integers(1, TRIALS + 6)), late=st.integers(0, 4))
def test_a_resumed_search_equals_an_uninterrupted_one(
    uninterrupted: Folder, interrupted_at: set[int], late: int
) -> None:
    """Cut off in any trials, pruned soon or late: the same trials, and none trained twice."""
    with tempfile.TemporaryDirectory() as path:
        folder = Folder(Path(path) / "small", uninterrupted.search)
        trainer = FakeTrainer(interrupted_at, late=late)
        while True:
            try:
                tuned = run_search(folder, trainer, Silence())
                break
            except Interruption:
                assert len(folder.tuned().trials) == len(trainer.trained)
        assert len(trainer.trained) == TRIALS
        assert without_clock(tuned) == without_clock(uninterrupted.tuned())
        assert folder.best.read_text() == uninterrupted.best.read_text()


def test_what_falls_behind_is_pruned(uninterrupted: Folder, tmp_path: Path) -> None:
    """It trains fewer epochs, tells when it was ended, and is never the best."""
    tuned = uninterrupted.tuned()
    pruned = [trial for trial in tuned.trials if trial.state == "pruned"]
    assert 0 < len(pruned) < TRIALS
    for trial in pruned:
        epochs = len(trial.epoch_accuracy)
        assert epochs < 4
        assert trial.reason == f"pruned after epoch {epochs} of 4"
        assert trial.accuracy == trial.epoch_accuracy[-1]
    assert tuned.best is not None
    assert tuned.best.state == "finished"
    trainer = FakeTrainer()
    run_search(Folder(tmp_path / "small", uninterrupted.search), trainer, Silence())
    assert trainer.epochs == sum(len(trial.epoch_accuracy) for trial in tuned.trials)


def test_without_a_pruner_all_go_on(tmp_path: Path) -> None:
    """Every trial has every epoch."""
    text = SEARCH.replace('{ name = "median", startup_trials = 3 }', '"none"')
    trainer = FakeTrainer()
    tuned = run_search(folder_in(tmp_path, text), trainer, Silence())
    assert trainer.epochs == 4 * TRIALS
    assert {trial.state for trial in tuned.trials} == {"finished"}


def test_the_search_comes_near_what_is_best(tmp_path: Path) -> None:
    """In sixty trials the sampler has found the learning rate and the batch size."""
    text = SEARCH.replace("trials = 12", "trials = 60")
    best = run_search(folder_in(tmp_path, text), FakeTrainer(), Silence()).best
    assert best is not None
    assert 0.01 < best.values["learning_rate"] < 0.1
    assert best.values["batch_size"] == 32
    late = folder_in(tmp_path, text).tuned().trials[-20:]
    assert sum(0.003 < trial.values["learning_rate"] < 0.3 for trial in late) >= 12


def test_the_best_spec_is_ready_to_run(uninterrupted: Folder) -> None:
    """It has the best trial's values in full, and the search's name."""
    spec = Spec.from_toml(uninterrupted.best.read_text())
    best = uninterrupted.tuned().best
    assert best is not None
    assert uninterrupted.search.values_of(spec) == best.values
    assert (spec.name, spec.shards) == ("small", 2)


def test_a_trial_that_fails_costs_only_itself(tmp_path: Path) -> None:
    """It is kept with its reason and not run again; the others are run all the same."""
    folder = folder_in(tmp_path)
    tuned = run_search(folder, FakeTrainer(hopeless={1, 4}, wrong={6}), Silence())
    failed = {trial.number: trial.reason for trial in tuned.trials if trial.state == "failed"}
    assert failed == {1: "no luck", 4: "no luck", 6: "no luck"}
    assert tuned.best is not None
    again = FakeTrainer()
    assert run_search(folder, again, Silence()) == tuned
    assert (again.trained, again.starts) == ([], 0)


def test_a_trial_of_bad_luck_is_tried_again(tmp_path: Path) -> None:
    """With the same values, in its place, once the search goes on; nothing else is run again."""
    folder = folder_in(tmp_path)
    before = run_search(folder, FakeTrainer(unlucky={3, 5}, hopeless={7}), Silence())
    assert [trial.number for trial in before.trials if trial.to_repeat] == [3, 5]
    assert str(before).startswith("small: 10 of 12 trials")
    assert "1 failed, 2 to be run again (trial 3: no luck)" in str(before)
    again = FakeTrainer(unlucky={2})
    after = run_search(folder, again, Silence())
    assert [folder.search.values_of(cell.spec) for cell in again.trained] == [
        before.trials[2].values,
        before.trials[4].values,
    ]
    assert [trial.number for trial in after.trials if trial.to_repeat] == [5]
    others = [trial for trial in before.trials if trial.number not in (3, 5)]
    assert [trial for trial in after.trials if trial.number not in (3, 5)] == others
    run_search(folder, FakeTrainer(), Silence())
    assert folder.tuned().left == 0
    assert [t.number for t in folder.tuned().trials if t.state == "failed"] == [7]


def test_a_mistake_shows_at_the_first_trial(tmp_path: Path) -> None:
    """Where its spec cannot be, nothing else is tried; the file may be mended, its folder kept."""
    trainer = FakeTrainer(wrong={1})
    with pytest.raises(ExperimentFailed, match="no luck") as told:
        run_search(folder_in(tmp_path), trainer, Silence())
    assert (told.value.exit_status, trainer.calls) == (2, 1)
    mended = folder_in(tmp_path, SEARCH.replace("epochs = 4", "epochs = 2"))
    assert len(run_search(mended, FakeTrainer(), Silence()).trials) == TRIALS


def test_a_trial_that_somebody_else_cancels_is_run_again(tmp_path: Path) -> None:
    """It says nothing about its values, so it counts for nothing."""
    folder = folder_in(tmp_path)
    with pytest.raises(ExperimentFailed, match="cancelled"):
        run_search(folder, FakeTrainer(stolen={3}), Silence())
    assert [trial.number for trial in folder.tuned().trials] == [1, 2]
    assert len(run_search(folder, FakeTrainer(), Silence()).trials) == TRIALS


def test_a_search_that_has_grown_runs_only_what_is_new(tmp_path: Path) -> None:
    """More trials go on from those that there are."""
    before = run_search(folder_in(tmp_path), FakeTrainer(), Silence())
    grown = folder_in(tmp_path, SEARCH.replace("trials = 12", "trials = 14"))
    trainer = FakeTrainer()
    after = run_search(grown, trainer, Silence())
    assert len(trainer.trained) == 2
    assert after.trials[:TRIALS] == before.trials


def test_only_one_process_runs_a_search(tmp_path: Path) -> None:
    """Who comes second is refused, and told which process it is."""
    folder = folder_in(tmp_path)

    class Nosy(FakeTrainer):
        def train(self, *words: object) -> bytes:
            run_search(folder, FakeTrainer(), Silence())
            raise AssertionError(words)

    with pytest.raises(SpecError, match=r"process \d+ runs it already"):
        run_search(folder, Nosy(), Silence())
