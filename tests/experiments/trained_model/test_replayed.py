"""A replay of a user's own task: the same bytes with its code, and a refusal with other code."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import downpour
from downpour.learning.allowlist import FOLDERS, VARIABLE

pytestmark = pytest.mark.slow


@pytest.mark.usefixtures("allowed")
def test_a_users_task_is_replayed(own: downpour.Result, tmp_path: Path) -> None:
    """Its result names the shared directory."""
    again = downpour.replay(own, to=tmp_path)
    assert again.same, again
    assert own.model_file is not None
    assert again.model_file is not None
    assert again.model_file.read_bytes() == own.model_file.read_bytes()


def told(own: downpour.Result, shared: Path, project: Path) -> str:
    """Return what the command says of a replay that is refused, with the code of a folder."""
    outcome = subprocess.run(
        [sys.executable, "-m", "downpour", "replay", own.experiment, "--shared", str(shared)],
        env={**os.environ, VARIABLE: "regression", FOLDERS: str(project)},
        cwd=project,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (outcome.returncode, outcome.stdout) == (2, ""), outcome
    assert outcome.stderr.count("\n") == 1, outcome
    return outcome.stderr


def test_other_code_is_refused(
    own: downpour.Result, shared: Path, code: Path, tmp_path: Path
) -> None:
    """Changed by a line, or gone; before anything is trained."""
    changed = (code / "regression.py").read_text(encoding="utf-8") + "\nMORE = 1\n"
    (tmp_path / "regression.py").write_text(changed, encoding="utf-8")
    said = told(own, shared, tmp_path)
    assert "regression.py has changed since the experiment was submitted" in said
    (tmp_path / "regression.py").unlink()
    assert "No module named 'regression'" in told(own, shared, tmp_path)
