"""What has finished is never run again, wherever the run was cut off."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from downpour.errors import ExperimentFailed, SpecError
from downpour.reports.summary import tables_of
from downpour.studies.grid import Grid
from downpour.studies.grid_folder import Folder
from downpour.studies.grid_runner import run_missing
from tests.studies.conftest import GRID, FakeTrainer, Interruption, Silence

CELLS = len(Grid.from_toml(GRID).cells)


def folder_in(path: Path) -> Folder:
    """Name the folder of the small grid."""
    return Folder(path / "small", Grid.from_toml(GRID))


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> Folder:
    """The small grid, run in one go."""
    folder = folder_in(tmp_path_factory.mktemp("uninterrupted"))
    assert run_missing(folder, FakeTrainer(), Silence()) == {}
    return folder


@settings(max_examples=8, deadline=None)
@given(interrupted_at=st.sets(st.integers(1, CELLS + 6)))
def test_a_resumed_grid_equals_an_uninterrupted_one(
    uninterrupted: Folder, interrupted_at: set[int]
) -> None:
    """Cut off at any cells, any number of times: the same tables, and no cell trained twice."""
    with tempfile.TemporaryDirectory() as path:
        folder = folder_in(Path(path))
        trainer = FakeTrainer(interrupted_at)
        while True:
            try:
                run_missing(folder, trainer, Silence())
                break
            except Interruption:
                assert len(list((folder.path / "cells").iterdir())) == len(trainer.trained)
        assert sorted(trainer.trained) == sorted(folder.grid.cells)
        told, expected = tables_of(folder.study()), tables_of(uninterrupted.study())
        assert [table.to_json() for table in told] == [table.to_json() for table in expected]


def test_cells_are_run_in_the_grids_order(uninterrupted: Folder, tmp_path: Path) -> None:
    """So the first trial of every setting is there before the second of any."""
    trainer = FakeTrainer()
    run_missing(folder_in(tmp_path), trainer, Silence())
    assert trainer.trained == list(uninterrupted.grid.cells)


def test_a_cell_that_failed_is_told_of_and_tried_again(tmp_path: Path) -> None:
    """The others are run all the same; the next run tries it alone."""
    folder = folder_in(tmp_path)
    unlucky = list(folder.grid.cells)[1]
    failed = run_missing(folder, FakeTrainer(hopeless={unlucky}), Silence())
    assert {cell: told.reason for cell, told in failed.items()} == {unlucky: "no luck"}
    assert [run.result.reason for run in folder.study().failed] == ["no luck"]
    again = FakeTrainer()
    assert run_missing(folder, again, Silence()) == {}
    assert again.trained == [unlucky]
    assert folder.study().failed == []


def test_a_mistake_shows_at_the_first_cell(tmp_path: Path) -> None:
    """Where its spec cannot be, nothing else is tried; the file may be mended, its folder kept."""
    folder = folder_in(tmp_path)
    first, second = list(folder.grid.cells)[:2]
    trainer = FakeTrainer(wrong={first})
    with pytest.raises(ExperimentFailed, match="no luck") as told:
        run_missing(folder, trainer, Silence())
    assert (told.value.exit_status, trainer.trained) == (2, [first])
    mended = Grid.from_toml(GRID.replace("workers = [1, 2]", "workers = [2]"))
    assert first not in mended.cells
    again = FakeTrainer(wrong={list(mended.cells)[1]})
    assert len(run_missing(Folder(folder.path, mended), again, Silence())) == 1
    assert second in again.trained
    assert not (folder.path / "cells" / first).exists()


def test_a_grid_that_has_grown_runs_only_what_is_new(tmp_path: Path) -> None:
    """One more trial is as many cells as there are settings."""
    run_missing(folder_in(tmp_path), FakeTrainer(), Silence())
    grown = Folder(tmp_path / "small", Grid.from_toml(GRID.replace("trials = 2", "trials = 3")))
    trainer = FakeTrainer()
    run_missing(grown, trainer, Silence())
    assert trainer.trained == list(grown.grid.cells)[CELLS:]
    assert Folder.read(grown.path).grid == grown.grid


def test_only_one_process_runs_a_grid(tmp_path: Path) -> None:
    """Who comes second is refused, and told which process it is."""
    folder = folder_in(tmp_path)

    class Nosy(FakeTrainer):
        def train(self, *words: object) -> bytes:
            run_missing(folder, FakeTrainer(), Silence())
            raise AssertionError(words)

    with pytest.raises(SpecError, match=r"process \d+ runs it already"):
        run_missing(folder, Nosy(), Silence())
