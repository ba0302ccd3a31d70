"""Epochs in a real Trackio folder."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from downpour.base.errors import is_installed
from downpour.show.loggers import TrackioRun, logger_of
from tests.show.loggers.conftest import EPOCHS, RUN

pytestmark = pytest.mark.skipif(not is_installed("trackio"), reason="trackio is not installed")

ROOT = Path(__file__).parents[3]
# In a process of its own: Trackio reads its folder's name when it is imported.
CODE = """
import json
from downpour.show.loggers import TrackioRun
from tests.show.loggers.conftest import logged, resumed

logged(TrackioRun("project"))
logged(TrackioRun("project"), resumed(3))
from trackio.sqlite_storage import SQLiteStorage
runs = SQLiteStorage.get_runs("project")
print(json.dumps({run: SQLiteStorage.get_logs("project", run) for run in runs}))
"""


@pytest.mark.slow
def test_a_resumed_experiment_continues_its_run(tmp_path: Path) -> None:
    """Each epoch at its number."""
    path = os.pathsep.join([str(ROOT / "src"), str(ROOT), os.environ.get("PYTHONPATH", "")])
    own = {"HOME": str(tmp_path), "TRACKIO_DIR": str(tmp_path / "kept"), "PYTHONPATH": path}
    ran = subprocess.run(
        [sys.executable, "-c", CODE],
        cwd=tmp_path,
        env={**os.environ, **own},
        capture_output=True,
        text=True,
        check=True,
    )
    ((name, rows),) = json.loads(ran.stdout).items()  # what Trackio prints is on standard error
    assert name == RUN.experiment
    told = [(row["step"], row["test/accuracy"]) for row in rows if "test/accuracy" in row]
    assert [step for step, _ in told] == [1, 3, 4, 6]
    steps = [row["step"] for row in rows if "step/loss" in row]
    assert steps == [2, 4, 10, 12, 14, 16, 22, 24]
    assert told[0][1] == pytest.approx(EPOCHS[0].accuracy)


def test_the_name_and_a_project_make_one() -> None:
    """As a user types them."""
    assert isinstance(logger_of("trackio:project"), TrackioRun)
