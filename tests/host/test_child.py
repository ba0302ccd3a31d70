"""Child processes, a last will, and the command of `--on-event`, each run as a real process."""

import fcntl
import json
import logging
import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from downpour.base.errors import SpecError
from downpour.base.states import ExperimentEvent, ExperimentState
from downpour.host.child import (
    Child,
    EventCommand,
    LastWill,
    checked_command,
    command_for,
    notice_at,
)

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


ENDED = ExperimentEvent(
    kind="failed",
    experiment="one-1",
    name="$(touch hacked); `touch hacked`",
    state=ExperimentState.FAILED,
    reason='"; touch hacked; echo "\n\x1b[2J',
)


def command(folder: Path, code: str) -> EventCommand:
    """Return a command that runs Python code in a folder."""
    file = folder / "told.py"
    file.write_text(f"import json, os, sys, time\nos.chdir({str(folder)!r})\n{code}\n")
    return EventCommand(checked_command(shlex.join([sys.executable, str(file)])))


def test_it_learns_what_has_happened(tmp_path: Path) -> None:
    """In the environment, each in one line, and as JSON on standard input as it is.

    That is one line, too: `read` of a shell takes it.
    """
    code = "json.dump([sys.stdin.read(), dict(os.environ)], open('told.json', 'w'))"
    command(tmp_path, code)(ENDED)
    line, environment = json.loads((tmp_path / "told.json").read_text())
    assert line.index("\n") == len(line) - 1
    assert json.loads(line) == {
        "kind": "failed",
        "experiment": "one-1",
        "name": ENDED.name,
        "state": "failed",
        "reason": ENDED.reason,
        "worker": "",
    }
    assert environment["DOWNPOUR_EVENT"] == environment["DOWNPOUR_STATE"] == "failed"
    assert environment["DOWNPOUR_EXPERIMENT"] == "one-1"
    assert environment["DOWNPOUR_NAME"] == ENDED.name
    assert environment["DOWNPOUR_REASON"] == r'"; touch hacked; echo " \x1b[2J'
    assert environment["PATH"] == os.environ["PATH"]


def test_no_shell_reads_names_and_reasons(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither those of an event, nor what the command itself has in quotes."""
    monkeypatch.chdir(tmp_path)
    EventCommand(checked_command("echo '$(touch hacked)' ; touch hacked"))(ENDED)
    assert not [*tmp_path.iterdir()]


def test_it_runs_for_what_a_person_may_act_on(tmp_path: Path) -> None:
    """A cluster has workers come and go all the time."""
    run = command(tmp_path, "open('told.txt', 'a').write(os.environ['DOWNPOUR_EVENT'] + ' ')")
    for kind in ("submitted", "worker-joined", "worker-lost", "waiting", "finished", "cancelled"):
        run(ExperimentEvent(kind=kind, experiment="one-1"))
    assert (tmp_path / "told.txt").read_text().split() == ["waiting", "finished", "cancelled"]


def test_one_that_fails_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """With its status, in one line."""
    with caplog.at_level(logging.WARNING):
        command(tmp_path, "sys.exit(3)")(ENDED)
    said = f"on_event: {sys.executable} exited with status 3"
    assert [record.getMessage() for record in caplog.records] == [said]


@pytest.mark.slow
def test_one_that_hangs_is_ended_with_what_it_started(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """After its limit: its children have its standard error, and would keep a terminal busy."""
    code = """
import fcntl, subprocess
lock = open("lock", "w")
fcntl.flock(lock, fcntl.LOCK_EX)
child = subprocess.Popen(["sleep", "1000"], pass_fds=[lock.fileno()])
time.sleep(1000)
"""
    run = command(tmp_path, code)
    run._limit_seconds = 3.0
    with caplog.at_level(logging.WARNING):
        run(ENDED)
    assert "has run for over 3 s" in caplog.text
    with (tmp_path / "lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # returns when neither of the two holds it


def test_a_program_that_is_gone_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """It was there when the run began."""
    file = tmp_path / "notify"
    file.write_text("#!/bin/sh\n")
    file.chmod(0o700)
    run = EventCommand(checked_command(str(file)))
    file.unlink()
    with caplog.at_level(logging.WARNING):
        run(ENDED)
    assert f"on_event: cannot start {file}: No such file or directory" in caplog.text


def test_a_program_is_named_by_its_whole_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that a manager that runs elsewhere starts the same one."""
    file = tmp_path / "notify me"
    file.write_text("#!/bin/sh\n")
    file.chmod(0o700)
    monkeypatch.chdir(tmp_path)
    assert checked_command("'./notify me' 'a b' c") == shlex.join([str(file), "a b", "c"])
    assert command_for("") is None


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("no-such-program x", "no program no-such-program here"),
        ("'open", "must be a command (No closing quotation)"),
        ("  ", "must be a command, such as ./notify.sh"),
        ("a\0b", "must be a command, such as ./notify.sh"),
    ],
)
def test_a_malformed_command_is_refused(text: str, said: str) -> None:
    """Before anything is begun."""
    with pytest.raises(SpecError) as refused:
        checked_command(text)
    assert str(refused.value).startswith("on_event = ")
    assert said in str(refused.value)


def test_a_notice_is_a_file_or_a_command_that_succeeds(tmp_path: Path) -> None:
    """Until then a look says no, whatever the command does."""
    file = tmp_path / "notice"
    looks = [notice_at(str(file)), notice_at(f"test -e {file}")]
    assert not any(look() for look in looks)
    file.symlink_to("a name is enough")
    assert looks[0]()
    file.unlink()
    file.touch()
    assert all(look() for look in looks)
    file.chmod(0o700)
    assert not notice_at(str(file))()  # an empty program, which does not start
