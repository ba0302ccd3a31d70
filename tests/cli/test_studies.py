"""`downpour grid`, `tune` and `report` as a user types them."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from downpour.core.spec import Spec
from downpour.experiments.studies import Grid, Search, StudyFolder, run_study
from downpour.experiments.studies.folder import held
from tests.experiments.studies.conftest import GRID, SEARCH, FakeBackend, Silence


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


def test_the_status_tells_how_a_detached_process_ended(
    downpour: Callable[..., Any], file: Path, tmp_path: Path
) -> None:
    """Its last words, and where the others are, until all runs are there."""
    log = tmp_path / "out" / "log.txt"
    log.parent.mkdir()
    log.write_text("note\ndownpour: dataset = 'nowhere': no such dataset\n")
    outcome = downpour("grid", file, "--out", log.parent, "--status")
    assert (outcome.status, "0 of 10 runs" in outcome.out) == (1, True)
    ended = "the detached process has ended: dataset = 'nowhere': no such dataset"
    assert f"{ended}; see {log}" in outcome.err


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


@pytest.fixture
def search_file(tmp_path: Path) -> Path:
    """A file that asks for the small search."""
    path = tmp_path / "small.toml"
    path.write_text(SEARCH)
    return path


@pytest.fixture
def searched(tmp_path: Path) -> Path:
    """The folder of the small search, all done."""
    folder = StudyFolder(tmp_path / "results", Search.from_toml(SEARCH))
    run_study(folder, FakeBackend(), Silence())
    return folder.path


def test_a_manager_that_is_nowhere_is_told(
    refused: Callable[..., str], search_file: Path, tmp_path: Path
) -> None:
    """The search can be given again once there is one."""
    words = "tune", search_file, "--manager", "127.0.0.1:1", "--out", tmp_path / "out"
    assert "cannot be reached" in refused(*words)
    assert "cannot be reached" in refused(*words)


@pytest.mark.slow
def test_a_search_that_is_done_is_only_told_of(
    downpour: Callable[..., Any], search_file: Path, searched: Path
) -> None:
    """Given again, the command runs nothing, shows the trials and draws them."""
    outcome = downpour("tune", search_file, "--out", searched, "--status")
    assert (outcome.status, outcome.err) == (0, "")
    assert not (searched / "search.png").exists()
    outcome = downpour("tune", search_file, "--out", searched)
    assert (outcome.status, outcome.err) == (0, "")
    lines = outcome.out.splitlines()
    assert lines[-4].startswith("small: 12 of 12 runs, ")
    assert downpour("tune", search_file, "--out", searched, "--detach").out == outcome.out
    assert not (searched / "log.txt").exists()
    files = [searched / name for name in ("best.toml", "search.png", "search.svg")]
    assert lines[-3:] == list(map(str, files))
    assert all(path.is_file() for path in files)
    assert max(map(len, lines[:-4])) <= 80


@pytest.mark.slow
def test_json_is_for_programs(
    downpour: Callable[..., Any], search_file: Path, searched: Path
) -> None:
    """It has every trial, the best one's number, and the files."""
    outcome = downpour("tune", search_file, "--out", searched, "--json")
    told = json.loads(outcome.out)
    best = told["trials"][told["best"] - 1]
    spec = Spec.from_toml(Path(told["files"][0]).read_text())
    assert spec.learning_rate == best["values"]["learning_rate"]
    assert len(told["trials"]) == told["asked"] == 12


def test_a_search_that_runs_elsewhere_is_told_of(
    downpour: Callable[..., Any], search_file: Path, searched: Path
) -> None:
    """The process that runs it, and its progress; nothing is written."""
    search_file.write_text(SEARCH.replace("trials = 12", "trials = 13"))
    with held(searched):
        outcome = downpour("tune", search_file, "--out", searched)
    assert outcome.status == 0
    assert "small: 12 of 13 runs" in outcome.out
    assert outcome.out.splitlines()[-2].endswith("runs it")
    assert outcome.out.splitlines()[-1] == str(searched / "best.toml")
    assert not (searched / "search.png").exists()
