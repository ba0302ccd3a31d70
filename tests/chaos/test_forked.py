"""A fork of a process that has imported torch is what the command itself would be."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.chaos import forked

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    "words", [["--version"], ["status", "--manager", "a:b:c"], ["list", "--shared", "nowhere"]]
)
def test_it_says_and_ends_with_the_same(words: list[str], tmp_path: Path) -> None:
    """Whether that is well or a mistake."""
    command = [sys.executable, "-m", "downpour.cli", *words]
    begun = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    made = forked.run(words, os.environ, tmp_path)
    assert (made.returncode, made.stdout, made.stderr) == (
        begun.returncode,
        begun.stdout,
        begun.stderr,
    )


def test_one_that_is_killed_is_gone_and_its_status_names_the_signal(tmp_path: Path) -> None:
    """As the parent of a process learns it; nobody has to look for it twice."""
    words = "manager", "--shared", str(tmp_path), "--port", "0"
    with (tmp_path / "log.txt").open("w") as log:
        manager = forked.Forked(words, os.environ, files={2: log.fileno()})
    assert manager.poll() is None
    with pytest.raises(subprocess.TimeoutExpired):
        manager.wait(0.01)
    manager.kill()
    assert manager.wait(30) == -signal.SIGKILL
    assert not psutil.pid_exists(manager.pid)
    manager.kill()


def test_a_module_that_is_started_through_pipes_ends_with_its_input() -> None:
    """As the fork server of a local cluster does, which has a session of its own."""
    module = "downpour.cluster.launchers.forkserver"
    started = forked.Forks().Popen(
        [sys.executable, "-m", module], stdin=-1, stdout=-1, start_new_session=True
    )
    assert started.stdin is not None
    assert started.stdout is not None
    with started.stdout, started.stdin:
        started.stdin.close()
        assert started.wait(30) == 0
        assert started.stdout.read() == b""
