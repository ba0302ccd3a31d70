"""`downpour grid` and `downpour report` as a user types them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from downpour.experiments.studies import Grid, StudyFolder, run_study
from tests.experiments.studies.conftest import GRID, FakeBackend, Silence


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A file that asks for the small grid."""
    path = tmp_path / "small.toml"
    path.write_text(GRID)
    return path


@pytest.fixture
def done(tmp_path: Path) -> Path:
    """The folder of the small grid, all done."""
    folder = StudyFolder(tmp_path / "results", Grid.from_toml(GRID))
    run_study(folder, FakeBackend(), Silence())
    return folder.path


def test_a_grid_that_is_done_is_only_told_of(
    downpour: Callable[..., Any], file: Path, done: Path
) -> None:
    """Given again, the command runs nothing and shows what came of it."""
    outcome = downpour("grid", file, "--out", done)
    assert (outcome.status, outcome.err) == (0, "")
    assert "small: 10 of 10 runs" in outcome.out
    assert max(map(len, outcome.out.splitlines())) <= 80
    assert "10 of 10" in downpour("grid", file, "--out", done, "--detach").out
    assert not (done / "log.txt").exists()
    told = json.loads(downpour("grid", file, "--out", done, "--status", "--json").out)
    assert (told["finished"], told["cells"], told["running"]) == (10, 10, None)


@pytest.mark.slow
def test_a_report_is_written_beside_the_results(downpour: Callable[..., Any], done: Path) -> None:
    """The page's path is the last line."""
    outcome = downpour("report", done)
    assert (outcome.status, outcome.err) == (0, "")
    assert outcome.out.splitlines()[-1] == str(done / "report" / "index.html")
    assert {path.name for path in (done / "report").iterdir()} == {
        "index.html",
        "live.html",
        "figures",
        "tables",
    }
    assert (done / "report" / "tables" / "splits-outcomes.csv").is_file()


def test_a_single_experiment_is_reported_on(
    downpour: Callable[..., Any], done: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder of one experiment is enough; nothing is written into it."""
    monkeypatch.chdir(tmp_path)
    run = next((done / "cells").iterdir())
    before = sorted(run.iterdir())
    outcome = downpour("report", run)
    assert outcome.status == 0
    page = Path(outcome.out.splitlines()[-1])
    assert page.is_file()
    assert page.parts[0] == "results"
    assert sorted(run.iterdir()) == before


def test_a_report_needs_results(
    refused: Callable[..., str], done: Path, tmp_path: Path, file: Path
) -> None:
    """A folder of something else, a corrupt record, a folder that is in use: a line each."""
    line = refused("report", file.parent)
    assert line.startswith(f"FOLDER = '{file.parent}': must be a folder of")
    (tmp_path / "search").mkdir()
    (tmp_path / "search" / "tune.toml").touch()
    assert "its figure is search.svg" in refused("report", tmp_path / "search")
    assert refused("report", done, "--out", tmp_path).endswith("choose another folder")
    run = next((done / "cells").iterdir())
    (run / "record.jsonl").write_text("{}\n")
    assert "record.jsonl cannot be read: line 1 is not a fact" in refused("report", done)
    assert "record.jsonl: line 1 is not a fact" in refused("report", run)
    assert not (done / "report").exists()
