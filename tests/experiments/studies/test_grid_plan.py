"""A grid that is run: in its order, with what failed run again the next time."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from downpour.experiments.studies import Grid, StudyFolder, grid_results, read_folder, run_study
from downpour.show.tables.report_tables import tables_of
from tests.experiments.studies.conftest import GRID, FakeBackend, Interruption, Silence, grid_folder

RUNS = len(Grid.from_toml(GRID).runs)


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> StudyFolder[Grid]:
    """The small grid, run in one go."""
    folder = grid_folder(tmp_path_factory.mktemp("uninterrupted"))
    assert run_study(folder, FakeBackend(), Silence()).is_successful
    return folder


@pytest.mark.slow
@settings(max_examples=8, deadline=None)
@given(interrupted_at=st.sets(st.integers(1, RUNS + 6)))
def test_a_resumed_grid_equals_an_uninterrupted_one(
    uninterrupted: StudyFolder[Grid], interrupted_at: set[int]
) -> None:
    """Cut off at any runs, any number of times: the same tables, and no run trained twice."""
    with tempfile.TemporaryDirectory() as path:
        folder = grid_folder(Path(path))
        backend = FakeBackend(interrupted_at)
        while True:
            try:
                run_study(folder, backend, Silence())
                break
            except Interruption:
                assert len(list((folder.path / "cells").iterdir())) == len(backend.trained)
        assert sorted(backend.names) == sorted(folder.study.runs)
        resumed, whole = tables_of(grid_results(folder)), tables_of(grid_results(uninterrupted))
        assert [table.to_json() for table in resumed] == [table.to_json() for table in whole]


def test_runs_are_made_in_the_grids_order(tmp_path: Path) -> None:
    """So the first repetition of every setting is there before the second of any."""
    folder, backend = grid_folder(tmp_path), FakeBackend()
    run_study(folder, backend, Silence())
    assert backend.names == list(folder.study.runs)


def test_a_run_that_failed_is_told_of_and_tried_again(tmp_path: Path) -> None:
    """The others are made all the same; the next time it is tried alone."""
    folder = grid_folder(tmp_path)
    unlucky = list(folder.study.runs)[1]
    progress = run_study(folder, FakeBackend(hopeless={unlucky}), Silence())
    assert progress.fields["failures"] == {unlucky: "no luck"}
    assert not progress.is_successful
    assert [run.result.reason for run in grid_results(folder).failed] == ["no luck"]
    again = FakeBackend()
    assert run_study(folder, again, Silence()).is_successful
    assert again.names == [unlucky]
    assert grid_results(folder).failed == []


def test_what_failed_may_be_left_out(tmp_path: Path) -> None:
    """A run that has not finished is removed once the file does not ask for it."""
    folder = grid_folder(tmp_path)
    first = next(iter(folder.study.runs))
    with pytest.raises(Interruption):
        run_study(folder, FakeBackend(hopeless={first}, interrupted_at={3}), Silence())
    assert folder.record(first).exists()
    text = GRID.replace("workers = [1, 2]", "workers = [2]")
    mended = StudyFolder(folder.path, Grid.from_toml(text))
    assert first not in mended.study.runs
    backend = FakeBackend()
    assert run_study(mended, backend, Silence()).is_successful
    assert len(backend.trained) == len(mended.study.runs) - 1
    assert not folder.record(first).parent.exists()


def test_a_grid_that_has_grown_runs_only_what_is_new(tmp_path: Path) -> None:
    """One more repetition is as many runs as there are settings."""
    run_study(grid_folder(tmp_path), FakeBackend(), Silence())
    grown = grid_folder(tmp_path, GRID.replace("trials = 2", "trials = 3"))
    backend = FakeBackend()
    run_study(grown, backend, Silence())
    assert backend.names == list(grown.study.runs)[RUNS:]
    assert read_folder(grown.path, Grid).study == grown.study
