"""How a command ends badly: one line, and a status that says whose fault it was."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import typer

from downpour.base.errors import DownpourError, SpecError
from downpour.cli.printing import LINE_CHARACTERS_MAX, VARIABLE, report_error

COMMAND = [sys.executable, "-m", "downpour.cli"]


@pytest.mark.parametrize(
    ("error", "status", "line"),
    [
        (SpecError("epochs", 0, "must be 1"), 2, "epochs = 0: must be 1"),
        (DownpourError("it went wrong"), 1, "it went wrong"),
        (typer.BadParameter("odd"), 2, "Invalid value: odd"),
        (KeyboardInterrupt(), 130, "stopped"),
        (typer.Abort(), 130, "stopped"),
        (OSError(errno.ENOSPC, "No space left on device"), 1, "output: No space left on device"),
        (PermissionError(errno.EACCES, "Permission denied", "here"), 1, "here: Permission denied"),
        (MemoryError(), 1, "out of memory"),
    ],
)
def test_each_error_has_its_line_and_status(
    capsys: pytest.CaptureFixture[str], error: BaseException, status: int, line: str
) -> None:
    """A user's mistake is 2, Ctrl-C 130, all else 1."""
    assert report_error(error) == status
    assert capsys.readouterr() == ("", f"downpour: {line}\n")


@pytest.mark.parametrize("error", [BrokenPipeError(errno.EPIPE, "Broken pipe"), SystemExit(1)])
def test_nothing_is_said_to_a_reader_who_has_left(
    capsys: pytest.CaptureFixture[str], error: BaseException
) -> None:
    """The status is that of a program which SIGPIPE has ended."""
    assert report_error(error) == 141
    assert capsys.readouterr() == ("", "")


def test_a_signals_own_status_is_kept() -> None:
    """A manager that SIGTERM has ended says so."""
    assert report_error(SystemExit(143)) == 143


def raised() -> Exception:
    """Make an error that has a traceback."""
    try:
        dict[str, int]()["nobody\nforesaw this"]
    except KeyError as error:
        return error
    raise AssertionError


def test_an_unexpected_exception_is_one_line_and_its_traceback_is_kept(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The line names the file; where there can be none, the variable that shows it."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.delenv(VARIABLE, raising=False)
    assert report_error(raised()) == 1
    (kept,) = tmp_path.iterdir()
    said = capsys.readouterr().err
    assert said.startswith("downpour: internal error: KeyError: ")
    assert said.endswith(f"(its traceback is in {kept})\n")
    assert said.count("\n") == 1
    assert '["nobody' in kept.read_text("utf-8")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "missing"))
    report_error(raised())
    assert capsys.readouterr().err.endswith(f"({VARIABLE}=1 shows where)\n")


def test_a_traceback_is_shown_to_who_asks(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The variable does it for every error; the line comes last all the same."""
    monkeypatch.setenv(VARIABLE, "1")
    report_error(SpecError("epochs", 0, "must be 1"))
    said = capsys.readouterr().err
    assert said.startswith("downpour.base.errors.SpecError: epochs")
    assert said.endswith("\ndownpour: epochs = 0: must be 1\n")


def test_a_line_is_never_a_flood(capsys: pytest.CaptureFixture[str]) -> None:
    """A reason from a peer can neither flood nor control the terminal."""
    report_error(DownpourError("\x1b[2J" + "long " * 10_000))
    said = capsys.readouterr().err
    assert len(said) <= LINE_CHARACTERS_MAX + len("downpour: \n")
    assert "\x1b" not in said


def test_a_full_disk_is_told(capfd: pytest.CaptureFixture[str]) -> None:
    """One line and status 1, and the interpreter adds nothing as it ends."""
    with open("/dev/full", "w") as full:
        ended = subprocess.run([*COMMAND, "--help"], stdout=full, check=False)
    assert ended.returncode == 1
    assert capfd.readouterr().err == "downpour: output: No space left on device\n"


@pytest.mark.slow
@pytest.mark.parametrize("words", [["--help"], ["simulate", "--seed", "1"]])
def test_a_reader_may_leave(capfd: pytest.CaptureFixture[str], words: list[str]) -> None:
    """`| head -1` gets its line, and nothing is said on standard error."""
    with subprocess.Popen([*COMMAND, *words], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.close()
    assert process.returncode == 141
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&-", "<&- >&- 2>&-"])
def test_streams_may_be_closed(closed: str) -> None:
    """What would have been written goes nowhere, and above all into no other file."""
    told = subprocess.run(
        ["sh", "-c", f"{sys.executable} -m downpour.cli run --epochs 0 {closed}"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert told.returncode == 2
    assert told.stdout == ""
    assert "Traceback" not in told.stderr


def test_no_encoding_is_too_small() -> None:
    """What ASCII lacks is written as what looks like it, on both streams."""
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    refused = subprocess.run(
        [*COMMAND, "run", "--epochs", "5 · 3 → 😀"],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert refused.stderr.startswith(r"downpour: epochs = '5 - 3 -> \U0001f600': must be")
    printed = subprocess.run(
        [
            sys.executable,
            "-c",
            "from downpour.cli import printing; printing.prepare(); print('±5·')",
        ],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert printed.stdout == "+-5-\n"


def test_a_warning_does_nothing_to_the_terminal() -> None:
    """A command without a log of its own prints warnings, which may quote a record."""
    code = (
        "import logging; from downpour.cli import printing; printing.prepare();"
        "logging.getLogger('any').warning('joined by %s', '\\x1b[2Jfirst\\nsecond')"
    )
    warned = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert warned.stderr == "joined by \\x1b[2Jfirst second\n"


def test_ctrl_c_while_commands_are_imported_ends_in_silence(tmp_path: Path) -> None:
    """No half of a module is left behind to complain about."""
    hook = tmp_path / "sitecustomize.py"
    hook.write_text(
        "import sys, os, signal\n"
        "class Finder:\n"
        "    def find_spec(self, name, *_):\n"
        "        if name == 'downpour.cli.commands':\n"
        "            os.kill(os.getpid(), signal.SIGINT)\n"
        "sys.meta_path.insert(0, Finder())\n"
    )
    told = subprocess.run(
        [*COMMAND, "--help"],
        env={"PYTHONPATH": f"{tmp_path}:{':'.join(filter(None, sys.path))}"},
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL) and None,
    )
    assert told.returncode == -signal.SIGINT
    assert (told.stdout, told.stderr) == ("", "")
