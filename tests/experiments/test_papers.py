"""The grids under examples/papers/ are what the papers did."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from downpour.experiments import Folder, Grid, run_missing
from tests.experiments.conftest import FakeTrainer, Silence

PAPERS = Path(__file__).parents[2] / "examples" / "papers"


def test_both_experiments_of_ece751_are_there() -> None:
    """Four numbers of workers, and three splits by three aggregations with ten; one is in both."""
    grid = Grid.from_toml((PAPERS / "ece751.toml").read_text("utf-8"))
    workers, splits = grid.groups
    assert list(workers.settings()) == [(1,), (3,), (7,), (10,)]
    assert len(list(splits.settings())) == 9
    assert len(grid.cells) == 12 * 10
    assert {cell.spec.epochs for cell in grid.cells.values()} == {5}
    assert all(cell.spec.shards == cell.workers for cell in grid.cells.values())


def test_what_was_published_stands_beside_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The script runs on a grid that is done, and prints a line for each published figure."""
    text = (PAPERS / "ece751.toml").read_text("utf-8").replace("trials = 10", "trials = 1")
    folder = Folder(tmp_path / "ece751", Grid.from_toml(text))
    run_missing(folder, FakeTrainer(), Silence())
    monkeypatch.syspath_prepend(str(PAPERS))
    monkeypatch.setattr(sys, "argv", ["ece751.py", str(folder.path)])
    import ece751  # type: ignore[import-not-found]

    ece751.main()
    said = capsys.readouterr().out
    assert said.count("\n| 1") == 8
    assert "| 10 workers, class | 5 | 9.80 | " in said
    assert (folder.path / "published.png").read_bytes().startswith(b"\x89PNG")
