"""The folder of a grid's results: whole, its own, and never overwritten by another's."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from downpour.errors import SpecError
from downpour.spec import Spec
from downpour.studies.grid import Grid
from downpour.studies.grid_folder import Folder
from downpour.studies.grid_runner import run_missing
from tests.studies.conftest import GRID, FakeTrainer, Silence, record_of


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    """A folder whose grid is done."""
    done = Folder(tmp_path / "small", Grid.from_toml(GRID))
    run_missing(done, FakeTrainer(), Silence())
    return done


def content(path: Path) -> dict[str, str]:
    """Return a digest of every file in a folder."""
    files = (file for file in path.rglob("*") if file.is_file())
    return {str(file): hashlib.sha256(file.read_bytes()).hexdigest() for file in files}


def first_cell(folder: Folder) -> Path:
    """Return the folder of the first cell."""
    return folder.path / "cells" / next(iter(folder.grid.cells))


def test_a_cell_is_kept_with_what_made_it(folder: Folder) -> None:
    """Its spec, its record as it was, and a summary."""
    cell_id, cell = next(iter(folder.grid.cells.items()))
    place = first_cell(folder)
    assert Spec.from_toml((place / "spec.toml").read_text()) == cell.spec
    assert (place / "record.jsonl").read_bytes() == record_of(cell)
    summary = folder.summaries()[cell_id]
    assert (summary.state, summary.workers, summary.seed) == ("finished", 1, 0)
    assert summary.accuracy == summary.epoch_accuracy[-1]


def test_what_was_cut_off_is_removed(folder: Folder) -> None:
    """A cell that was being written when the power went is none, and leaves nothing."""
    first_cell(folder).rename(folder.path / "cells" / f".new-{first_cell(folder).name}")
    assert [cell.id for cell in folder.missing()] == [first_cell(folder).name]
    run_missing(folder, FakeTrainer(), Silence())
    assert not list((folder.path / "cells").glob(".*"))
    assert folder.missing() == []


def scribble(cell: Path) -> None:
    """Write a line into the record that is none."""
    file = cell / "record.jsonl"
    file.write_text("nonsense\n" + file.read_text())


def shorten(cell: Path) -> None:
    """Cut the record off in the middle of a line."""
    file = cell / "record.jsonl"
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


def shorten_an_old_one(cell: Path) -> None:
    """Cut off the record of a version that wrote no checksum."""
    forget_checksum(cell)
    shorten(cell)


def flip(cell: Path) -> None:
    """Change a digit of the record, which is still one."""
    file = cell / "record.jsonl"
    text = file.read_text()
    place = text.rindex('"accuracy": 0.') + len('"accuracy": 0.')
    file.write_text(text[:place] + str(9 - int(text[place])) + text[place + 1 :])


def forget_checksum(cell: Path) -> None:
    """Make a cell as earlier versions did."""
    file = cell / "summary.json"
    told = json.loads(file.read_text())
    del told["checksum"]
    file.write_text(json.dumps(told))


def lose(cell: Path) -> None:
    """Remove the record."""
    (cell / "record.jsonl").unlink()


def garble(cell: Path) -> None:
    """Write something else over the summary."""
    (cell / "summary.json").write_text("{}")


def swap(cell: Path) -> None:
    """Put another experiment's spec in."""
    (cell / "spec.toml").write_text(Spec(epochs=9).to_toml())


def rename(cell: Path) -> None:
    """Call the cell something else."""
    cell.rename(cell.with_name("w9-random-average-s0-0123456789"))


def overwrite_grid(cell: Path) -> None:
    """Write something else over the grid."""
    (cell.parents[1] / "grid.toml").write_text("split = []")


@pytest.mark.parametrize(
    "harm",
    [scribble, shorten, shorten_an_old_one, flip, lose, garble, swap, rename, overwrite_grid],
)
def test_what_is_not_whole_is_refused_and_left_as_it_is(
    folder: Folder, harm: Callable[[Path], None]
) -> None:
    """One line that names the folder; nothing is run, and nothing changed."""
    harm(first_cell(folder))
    before = content(folder.path)
    trainer = FakeTrainer()
    with pytest.raises(SpecError, match="folder = ") as told:
        run_missing(folder, trainer, Silence())
    assert "\n" not in str(told.value)
    assert str(folder.path) in str(told.value)
    assert trainer.calls == 0
    assert content(folder.path) == before


def test_what_an_earlier_version_kept_is_read(folder: Folder) -> None:
    """Its summaries had no checksum."""
    forget_checksum(first_cell(folder))
    trainer = FakeTrainer()
    run_missing(folder, trainer, Silence())
    assert trainer.calls == 0


@pytest.mark.parametrize(
    "change",
    [
        ('name = "small"', 'name = "other"'),
        ("epochs = 2", "epochs = 3"),
        ("trials = 2", "trials = 1"),
        ('"class"', '"equal"'),
    ],
)
def test_the_folder_of_another_experiment_is_refused(
    folder: Folder, change: tuple[str, str]
) -> None:
    """Also that of one that had more than is asked for now."""
    other = Folder(folder.path, Grid.from_toml(GRID.replace(*change)))
    before = content(folder.path)
    with pytest.raises(SpecError, match="holds another experiment; choose another folder"):
        run_missing(other, FakeTrainer(), Silence())
    assert content(folder.path) == before


def test_a_folder_of_something_else_is_refused(tmp_path: Path) -> None:
    """A folder with files in it, or a file in its place."""
    (tmp_path / "thesis.txt").write_text("years of work")
    with pytest.raises(SpecError, match=r"is not empty, and has no grid\.toml"):
        run_missing(Folder(tmp_path, Grid.from_toml(GRID)), FakeTrainer(), Silence())
    with pytest.raises(SpecError, match="not a folder"):
        run_missing(Folder(tmp_path / "thesis.txt", Grid.from_toml(GRID)), FakeTrainer(), Silence())
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


def test_a_study_has_each_run_at_its_place(folder: Folder) -> None:
    """A cell that two groups share stands in both."""
    workers, splits = folder.study().groups
    assert [len(workers.at(values)) for values in workers.settings] == [2, 2]
    shared = [run.result for run in splits.at(("random", "average"))]
    assert shared == [run.result for run in workers.at((2,))]
