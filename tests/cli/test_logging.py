"""`--log` and `--on-event` as a user types them."""

from __future__ import annotations

import csv
import json
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.usefixtures("forked_clusters")

Downpour = Callable[..., Any]
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
