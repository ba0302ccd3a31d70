"""A child process, and a last will: whatever a killed process could not clean up."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from downpour.host.child import Child, LastWill

WRITE = """
import sys, time
from downpour.host.child import LastWill
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


def test_a_revoked_last_will_does_nothing(tmp_path: Path) -> None:
    """The shell ends, and does nothing."""
    will = LastWill(f"touch {tmp_path / 'done'}")
    will.revoke()
    assert will._shell.returncode == 0
    assert list(tmp_path.iterdir()) == []


def test_a_child_hears_its_request_and_its_last_words_are_kept(tmp_path: Path) -> None:
    """The module `calendar` refuses a year; what is told to an ended process is not taken."""
    child = Child("calendar", ["no-year"], log=tmp_path / "log")
    child.process.wait(60)
    assert "invalid int value: 'no-year'" in child.last_words
    assert not child.tell(b"x" * 2**20)
    child.end(60)
    assert child.process.returncode == 2


def test_a_child_that_does_not_listen_is_killed() -> None:
    """The end of its input tells it to end; this one sleeps instead."""
    child = Child("timeit", ["-n1", "-r1", "import time; time.sleep(600)"], answers=True)
    child.end(0.0)
    assert child.process.returncode == -signal.SIGKILL
    assert child.process.stdout is not None
    child.process.stdout.close()
