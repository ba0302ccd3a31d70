"""`--log`, `--on-event` and `--tensorboard` as a user types them, at each entrance."""

import csv
import json
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from downpour.cluster.options import ManagerOptions
from downpour.experiments.studies import Grid, StudyFolder, read_folder, run_study
from downpour.launchers import LaunchPlan, LocalCluster
from tests.experiments.studies.conftest import GRID, SEARCH, FakeBackend, Silence

pytestmark = pytest.mark.usefixtures("forked_clusters")

Downpour = Callable[..., Any]

Refused = Callable[..., str]

ASKED = {"grid": GRID, "tune": SEARCH}

GESTURES = str(Path(__file__).parents[1] / "recorded" / "gestures")


def accuracies(folder: Path) -> list[float]:
    """Read a run's accuracies back, by epoch."""
    return [event.value for event in scalars(folder, "accuracy/test")]


def scalars(folder: Path, tag: str) -> list[Any]:
    """Read the events of a tag back."""
    found = EventAccumulator(str(folder))
    found.Reload()
    return list(found.Scalars(tag))


@pytest.mark.parametrize(
    "words", [["run"], ["submit", "--watch", "--seed=1"], ["report", GESTURES], ["grid"], ["tune"]]
)
def test_a_folder_that_is_none_is_told_before_anything_starts(
    refused: Refused, served: Any, tmp_path: Path, words: list[str]
) -> None:
    """By every command; nothing is submitted, and no shared directory made."""
    file = tmp_path / "file"
    file.touch()
    if words[0] in ASKED:
        (tmp_path / "asked.toml").write_text(ASKED[words[0]])
        words = [*words, str(tmp_path / "asked.toml"), "--out", str(tmp_path / "out")]
    at = ["--manager", served.address] if words[0] == "submit" else []
    is_here = words[0] in {"run", *ASKED}
    shared = ["--shared", str(tmp_path / "shared")] if is_here else []
    line = refused(*words, *at, *shared, "--tensorboard", file)
    assert line == f"tensorboard = '{file}': not a folder"
    assert not (tmp_path / "shared").exists()
    assert not (tmp_path / "out").exists()


def test_event_files_need_watch_and_the_line_names_results(
    refused: Refused, tmp_path: Path
) -> None:
    """`submit` alone ends before there is anything to write."""
    line = refused("submit", "--seed", "1", "--tensorboard", tmp_path / "runs")
    assert line.endswith("needs --watch; `downpour results ID --tensorboard DIR` writes them later")
    assert not (tmp_path / "runs").exists()


@pytest.mark.slow
def test_a_grid_has_a_run_for_each_cell(downpour: Downpour, tmp_path: Path) -> None:
    """Under names that say which is which."""
    folder = StudyFolder(tmp_path / "results", Grid.from_toml(GRID))
    run_study(folder, FakeBackend(), Silence())
    runs = tmp_path / "runs"
    assert downpour("report", folder.path, "--tensorboard", runs).status == 0
    assert {path.name for path in runs.iterdir()} == set(folder.study.runs)
    for ended in folder.ended():
        told = accuracies(runs / ended.run.name)
        assert told[-1] == pytest.approx(ended.summary.last["accuracy"])


@pytest.mark.slow
def test_a_grid_that_runs_writes_each_cell_as_it_ends(downpour: Downpour, tmp_path: Path) -> None:
    """And before the first of them what had ended before."""
    file, runs = tmp_path / "quick.toml", tmp_path / "runs"
    text = 'name = "quick"\nworkers = 1\nepochs = 1\ntrain_limit = 100\n'
    words = "grid", file, "--out", tmp_path / "out", "--shared", tmp_path / "shared"
    file.write_text(text)
    assert downpour(*words).status == 0
    assert not runs.exists()
    file.write_text(f"{text}trials = 2\n")
    assert downpour(*words, "--tensorboard", runs).status == 0
    folder = read_folder(tmp_path / "out", Grid)
    assert {path.name for path in runs.iterdir()} == set(folder.study.runs)
    for ended in folder.ended():
        told = accuracies(runs / ended.run.name)
        assert told == pytest.approx([ended.summary.last["accuracy"]])


@pytest.mark.slow
def test_a_run_and_its_results_give_the_same(downpour: Downpour, tmp_path: Path) -> None:
    """Live or afterwards; standard output stays as it is."""
    shared = "--shared", tmp_path / "shared"
    words = "run", "--epochs", "2", "--shards", "2", "--json", *shared
    ran = downpour(*words, "--tensorboard", tmp_path / "live")
    assert (ran.status, ran.err) == (0, "")
    result = json.loads(ran.out)
    found = accuracies(tmp_path / "live" / result["experiment"])
    assert found == pytest.approx([epoch["accuracy"] for epoch in result["epochs"]])
    steps = scalars(tmp_path / "live" / result["experiment"], "step/loss")
    trained = sum(task["steps"] for task in result["tasks"] if task["shard"] == 0)
    assert [point.step for point in steps] == [*range(1, trained + 1)]
    for number, epoch in enumerate(result["epochs"]):
        losses = [point.value for point in steps[number * trained // 2 :][: trained // 2]]
        assert fmean(losses) == pytest.approx(epoch["train_loss"], rel=0.05)
    later = "results", result["experiment"], "--json", *shared, "--tensorboard"
    assert json.loads(downpour(*later, tmp_path / "later").out) == result
    live, again = (
        [path.read_bytes() for path in (tmp_path / name).rglob("*.downpour")]
        for name in ("live", "later")
    )
    assert len(live) == 1
    assert live == again


@pytest.mark.slow
def test_an_experiment_elsewhere_has_them_too(downpour: Downpour, tmp_path: Path) -> None:
    """From the manager alone, which keeps the record."""
    with LocalCluster(
        LaunchPlan(ManagerOptions(shared=str(tmp_path / "shared"), port=0), 1)
    ) as cluster:
        at = "--manager", cluster.address, "--tensorboard", tmp_path / "runs"
        done = downpour("submit", "--epochs", "1", "--shards", "1", "--watch", *at)
        assert done.status == 0, done.err
        experiment = done.out.split()[0]
        assert len(accuracies(tmp_path / "runs" / experiment)) == 1


SMALL = "--shards", "2", "--train-limit", "200", "--workers", "1"


def telling(folder: Path) -> str:
    """Return a command that appends what has happened to a file."""
    file = folder / "told.txt"
    words = "{DOWNPOUR_EVENT} {DOWNPOUR_EXPERIMENT} {DOWNPOUR_STATE}"
    code = f"import os; open({str(file)!r}, 'a').write({words!r}.format(**os.environ) + chr(10))"
    return shlex.join([sys.executable, "-c", code])


def told(folder: Path) -> list[list[str]]:
    """Return the words that were appended, by line."""
    return [line.split() for line in (folder / "told.txt").read_text().splitlines()]


@pytest.mark.slow
def test_a_run_is_logged_and_its_end_is_told(downpour: Downpour, tmp_path: Path) -> None:
    """A resumed one adds its epochs; standard output stays as it is."""
    file, shared = tmp_path / "log.csv", ("--shared", tmp_path / "shared")
    watched = "--log", f"csv:{file}", "--on-event", telling(tmp_path), "--json"
    ran = downpour("run", "--epochs", "2", *SMALL, *shared, *watched)
    assert (ran.status, ran.err) == (0, "")
    first = json.loads(ran.out)["experiment"]
    went_on = ("run", "--resume", first, "--epochs", "3", "--workers", "1", *shared, *watched)
    second = json.loads(downpour(*went_on).out)["experiment"]
    with file.open(newline="") as opened:
        rows = [(row["experiment"], row["epoch"]) for row in csv.DictReader(opened)]
    assert rows == [(first, "1"), (first, "2"), (second, "3")]
    ends = [["finished", experiment, "finished"] for experiment in (first, second)]
    assert told(tmp_path) == ends


@pytest.mark.slow
def test_each_run_of_a_grid_is_told(downpour: Downpour, tmp_path: Path) -> None:
    """When it ends, and not only when all have."""
    grid = tmp_path / "grid.toml"
    grid.write_text('name = "quick"\nworkers = 1\nepochs = 1\ntrain_limit = 100\ntrials = 2\n')
    to = "--out", tmp_path / "out", "--shared", tmp_path / "shared"
    assert downpour("grid", grid, *to, "--on-event", telling(tmp_path)).status == 0
    assert [event for event, *_ in told(tmp_path)] == ["finished", "finished"]
