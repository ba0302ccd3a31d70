"""What a killed process could not clean up itself is cleaned up all the same."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from downpour.cluster.launchers.forking import LastWill

WRITE = """
import sys, time
from downpour.cluster.launchers.forking import LastWill
will = LastWill(f"echo cleaned > {sys.argv[1]}")
print("ready", flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_death_is_noticed_however_it_came(tmp_path: Path, number: signal.Signals) -> None:
    """A pipe ends with its process; a FIFO tells this test when the shell has done its work."""
    done = tmp_path / "done"
    os.mkfifo(done)
    command = [sys.executable, "-c", WRITE, str(done)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(number)
    assert done.read_text() == "cleaned\n"


def test_who_has_cleaned_up_leaves_nothing_to_do(tmp_path: Path) -> None:
    """The shell ends, and does nothing."""
    will = LastWill(f"touch {tmp_path / 'done'}")
    will.revoke()
    assert will._shell.returncode == 0
    assert list(tmp_path.iterdir()) == []
