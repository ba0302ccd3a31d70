"""A run that outlives the terminal: begun, killed, resumed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from downpour.base.errors import SpecError
from downpour.experiments.studies import Grid, StudyFolder
from downpour.experiments.studies.folder import LOG_NAME, held, holder
from downpour.experiments.studies.running import detach
from tests.experiments.studies.conftest import GRID
from tests.waiting import until

COMMAND = [sys.executable, "-m", "downpour.cli", "grid"]
QUICK = """\
name = "quick"
trials = 2
epochs = 2
train_limit = 200
workers = [1, 2]
shards = 2
"""


def test_a_grid_that_is_being_run_is_not_begun_again(tmp_path: Path) -> None:
    """No process is started beside the one that holds the folder."""
    folder = StudyFolder(tmp_path / "small", Grid.from_toml(GRID))
    folder.make()
    with held(folder.path), pytest.raises(SpecError, match="is already running it"):
        detach("grid", folder, [])
    assert not (folder.path / LOG_NAME).exists()


@pytest.mark.slow
def test_a_detached_run_is_killed_and_resumed(tmp_path: Path) -> None:
    """Killed, then stopped, then left alone: it finishes, and what was there is as it was."""
    file, out = tmp_path / "quick.toml", tmp_path / "out"
    file.write_text(QUICK)
    command = [*COMMAND, str(file), "--out", str(out), "--shared", str(tmp_path / "shared")]

    def records() -> dict[Path, bytes]:
        return {path: path.read_bytes() for path in out.glob("cells/w*/record.jsonl")}

    def begin_and_end(end: signal.Signals, cells: int) -> None:
        subprocess.run([*command, "--detach"], check=True, capture_output=True)
        until(lambda: len(records()) >= cells)
        os.kill(int((out / "run.pid").read_text()), end)
        until(lambda: holder(out) is None)

    begin_and_end(signal.SIGKILL, 1)
    kept = records()
    begin_and_end(signal.SIGTERM, 2)
    assert (out / "log.txt").read_text().endswith("downpour: stopped\n")
    assert kept.items() <= records().items()
    kept = records()
    subprocess.run([*command, "--detach"], check=True, capture_output=True)
    until(lambda: len(records()) == 4 and holder(out) is None)
    assert kept.items() <= records().items()
    told = json.loads(subprocess.check_output([*command, "--status", "--json"]))
    assert (told["finished"], told["running"], told["failures"]) == (4, None, {})


@pytest.mark.slow
@pytest.mark.parametrize(
    ("study", "search"), [("grid", ""), ("tune", "[search]\nlearning_rate = [0.1]\n")]
)
def test_a_detached_run_that_cannot_begin_is_told_of(
    tmp_path: Path, study: str, search: str
) -> None:
    """The last words of the process are the command's own, with its status."""
    file = tmp_path / "quick.toml"
    file.write_text(f'name = "g"\nworkers = 1\ndataset = "nowhere"\n{search}')
    command = [*COMMAND[:-1], study, str(file), "--detach", "--out", str(tmp_path / "out")]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ran.returncode == 2
    assert ran.stderr.startswith("downpour: dataset = 'nowhere'")
