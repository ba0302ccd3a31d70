"""`downpour tune` as a user types it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from downpour.core.spec import Spec
from downpour.experiments.studies import Search, StudyFolder, run_study
from downpour.experiments.studies.folder import held
from tests.experiments.studies.conftest import SEARCH, FakeBackend, Silence


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A file that asks for the small search."""
    path = tmp_path / "small.toml"
    path.write_text(SEARCH)
    return path


@pytest.fixture
def done(tmp_path: Path) -> Path:
    """The folder of the small search, all done."""
    folder = StudyFolder(tmp_path / "results", Search.from_toml(SEARCH))
    run_study(folder, FakeBackend(), Silence())
    return folder.path


def test_a_manager_that_is_nowhere_is_told(
    refused: Callable[..., str], file: Path, tmp_path: Path
) -> None:
    """The search can be given again once there is one."""
    words = "tune", file, "--manager", "127.0.0.1:1", "--out", tmp_path / "out"
    assert "cannot be reached" in refused(*words)
    assert "cannot be reached" in refused(*words)


@pytest.mark.slow
def test_a_search_that_is_done_is_only_told_of(
    downpour: Callable[..., Any], file: Path, done: Path
) -> None:
    """Given again, the command runs nothing, shows the trials and draws them."""
    outcome = downpour("tune", file, "--out", done, "--status")
    assert (outcome.status, outcome.err) == (0, "")
    assert not (done / "search.png").exists()
    outcome = downpour("tune", file, "--out", done)
    assert (outcome.status, outcome.err) == (0, "")
    lines = outcome.out.splitlines()
    assert lines[-4].startswith("small: 12 of 12 runs, ")
    assert downpour("tune", file, "--out", done, "--detach").out == outcome.out
    assert not (done / "log.txt").exists()
    files = [done / name for name in ("best.toml", "search.png", "search.svg")]
    assert lines[-3:] == list(map(str, files))
    assert all(path.is_file() for path in files)
    assert max(map(len, lines[:-4])) <= 80


@pytest.mark.slow
def test_json_is_for_programs(downpour: Callable[..., Any], file: Path, done: Path) -> None:
    """It has every trial, the best one's number, and the files."""
    outcome = downpour("tune", file, "--out", done, "--json")
    told = json.loads(outcome.out)
    best = told["trials"][told["best"] - 1]
    spec = Spec.from_toml(Path(told["files"][0]).read_text())
    assert spec.learning_rate == best["values"]["learning_rate"]
    assert len(told["trials"]) == told["asked"] == 12


def test_a_search_that_runs_elsewhere_is_told_of(
    downpour: Callable[..., Any], file: Path, done: Path
) -> None:
    """The process that runs it, and its progress; nothing is written."""
    file.write_text(SEARCH.replace("trials = 12", "trials = 13"))
    with held(done):
        outcome = downpour("tune", file, "--out", done)
    assert outcome.status == 0
    assert "small: 12 of 13 runs" in outcome.out
    assert outcome.out.splitlines()[-2].endswith("runs it")
    assert outcome.out.splitlines()[-1] == str(done / "best.toml")
    assert not (done / "search.png").exists()


@pytest.mark.slow
def test_runs_of_bad_luck_are_told_by_the_status(
    downpour: Callable[..., Any], file: Path, tmp_path: Path
) -> None:
    """One that failed because of its values is not: there is nothing to be done about it."""
    folder = StudyFolder(tmp_path / "results", Search.from_toml(SEARCH))
    run_study(folder, FakeBackend(hopeless={2}), Silence())
    assert downpour("tune", file, "--out", folder.path).status == 0
    text = SEARCH.replace("trials = 12", "trials = 13")
    file.write_text(text)
    grown = StudyFolder(folder.path, Search.from_toml(text))
    run_study(grown, FakeBackend(unlucky={1}), Silence())
    told = downpour("tune", file, "--out", folder.path, "--status")
    assert "1 failed, 1 to repeat (run 13: no luck)" in told.out
    assert "no process runs it now" in told.out
