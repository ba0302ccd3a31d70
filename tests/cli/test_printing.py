"""Where commands print, and how they end badly: one line, and a status that says whose fault."""

import errno
import json
import math
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import typer

from downpour.base.errors import DownpourError, SpecError
from downpour.base.states import ExperimentState, WorkerState
from downpour.cli import printing
from downpour.core.resolve import resolve
from downpour.core.spec import Spec
from downpour.network.rpc.messages import ExperimentSummary, Status, WorkerStatus
from downpour.record import Result
from tests.show.tables.test_terminal_tables import LINES


def test_notes_go_to_standard_error_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    """Long ones are not broken and brackets are no markup."""
    printing.note("[red]" + "x" * 200)
    assert capsys.readouterr() == ("", "[red]" + "x" * 200 + "\n")


WORKER = WorkerStatus(
    worker="worker-1", address="127.0.0.1:1", state=WorkerState.IDLE, tasks_done=0, device="cuda:1"
)


def during(state: ExperimentState) -> Status:
    """Make the status of an experiment in a state."""
    experiment = ExperimentSummary(
        experiment="any", name="any", state=state, rounds_done=0, rounds_total=1
    )
    return Status(change=1, experiment=experiment, workers=(WORKER,))


def test_the_spec_that_was_made_is_shown_once_training_begins(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """What differs from the defaults, as TOML that makes it again, below the experiment's ID."""
    spec = Spec(shards=3, split="dirichlet(0.5)", model_options={"dropout": 0.1})
    seen: list[Status] = []
    show = printing.RunNotes(seen.append, spec).status
    early = [during(ExperimentState.WAITING), during(ExperimentState.PREPARING)]
    late = [during(ExperimentState.RUNNING), during(ExperimentState.FINISHED)]
    for status in early:
        show(status)
    assert capsys.readouterr().err == ""
    for status in late:
        show(status)
    said = capsys.readouterr().err
    assert Spec.from_toml(said) == spec
    assert said.splitlines()[0] == "# any"
    assert said.splitlines()[1] == "# device = auto: cuda"
    assert len(said.splitlines()) == 7  # three fields, a blank line and a table's head
    assert seen == early + late


def test_the_values_of_auto_are_explained_above_the_spec(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """As a comment, once, and not before the experiment trains: what is shown is a spec."""
    asked = Spec.make({"optimizer_state": "auto"})
    shown = printing.RunNotes(lambda _: None, asked, ["2 workers"])
    shown.resolved(resolved := resolve(asked, 2))
    shown.status(during(ExperimentState.PREPARING))
    assert capsys.readouterr().err == ""
    for _ in range(2):
        shown.status(during(ExperimentState.RUNNING))
    said = capsys.readouterr().err
    assert Spec.from_toml(said).model_dump() == resolved.model_dump()
    name, remark, why = said.splitlines()[:3]
    assert (name, remark) == ("# any", "# 2 workers")
    assert why.startswith("# auto: optimizer_state = keep")


def test_a_spec_that_continues_shows_all_epochs(capsys: pytest.CaptureFixture[str]) -> None:
    """And nothing that a submission fixes."""
    spec = Spec(epochs=4, rounds_before=3, init_from="any/m", data_key="a", code={"x.py": "1"})
    printing.print_spec(spec, ["any"])
    said = "# any\n# epoch 4 of 7 comes next, from any/m\nepochs = 7\n"
    assert capsys.readouterr().err == said


def test_an_experiment_without_workers_has_not_begun(capsys: pytest.CaptureFixture[str]) -> None:
    """The device that `auto` means is that of the workers, so the spec waits for one."""
    shown = printing.RunNotes(lambda _: None, Spec(shards=3))
    shown.status(replace(during(ExperimentState.RUNNING), workers=()))
    assert capsys.readouterr().err == ""
    shown.status(during(ExperimentState.RUNNING))
    assert capsys.readouterr().err.splitlines()[:2] == ["# any", "# device = auto: cuda"]


def test_an_experiment_that_never_trains_shows_no_spec(capsys: pytest.CaptureFixture[str]) -> None:
    """The reason stands alone, in one line."""
    printing.RunNotes(lambda _: None, Spec()).status(during(ExperimentState.FAILED))
    assert capsys.readouterr().err == ""


def test_piped_output_is_whole(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where there is no terminal, no line of a table is cut or wrapped."""
    monkeypatch.delenv("COLUMNS", raising=False)
    printing.out.cache_clear()
    printing.out().print("x y " * 500, end="")
    assert "\n" not in capsys.readouterr().out
    printing.out.cache_clear()


def test_the_path_of_the_model_is_not_wrapped(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It stands in a line of its own, however narrow the terminal is."""
    monkeypatch.setenv("COLUMNS", "80")
    printing.out.cache_clear()
    folder = Path("a long name of a folder" * 9)
    printing.print_result(Result.from_lines(LINES, folder))
    printing.out.cache_clear()
    assert f"\nmodel {folder}/model-3.safetensors\n" in capsys.readouterr().out


def test_json_has_null_for_what_is_no_number(capsys: pytest.CaptureFixture[str]) -> None:
    """No parser but Python's own takes NaN, as a prediction may be."""
    printing.print_json([{"a": math.nan, "b": (math.inf, -math.inf, 1.5)}])
    shown = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)
    assert shown == [{"a": None, "b": [None, None, 1.5]}]


COMMAND = [sys.executable, "-m", "downpour"]


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
    assert printing.report_error(error) == status
    assert capsys.readouterr() == ("", f"downpour: {line}\n")


@pytest.mark.parametrize("error", [BrokenPipeError(errno.EPIPE, "Broken pipe"), SystemExit(1)])
def test_nothing_is_said_to_a_reader_who_has_left(
    capsys: pytest.CaptureFixture[str], error: BaseException
) -> None:
    """The status is that of a program which SIGPIPE has ended."""
    assert printing.report_error(error) == 141
    assert capsys.readouterr() == ("", "")


def test_a_signals_own_status_is_kept() -> None:
    """A manager that SIGTERM has ended says so."""
    assert printing.report_error(SystemExit(143)) == 143


def raised() -> Exception:
    """Make an error that has a traceback."""
    try:
        dict[str, int]()["an error\nof two lines"]
    except KeyError as error:
        return error
    raise AssertionError


def test_an_unexpected_exception_is_one_line_and_its_traceback_is_kept(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The line names the file; where there can be none, the variable that shows it."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.delenv(printing.VARIABLE, raising=False)
    assert printing.report_error(raised()) == 1
    (kept,) = tmp_path.iterdir()
    said = capsys.readouterr().err
    assert said.startswith("downpour: internal error: KeyError: ")
    assert said.endswith(f"(its traceback is in {kept})\n")
    assert said.count("\n") == 1
    assert '["an error' in kept.read_text("utf-8")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "missing"))
    printing.report_error(raised())
    assert capsys.readouterr().err.endswith(f"({printing.VARIABLE}=1 shows where)\n")


def test_a_traceback_is_shown_to_who_asks(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The variable does it for every error; the line comes last all the same."""
    monkeypatch.setenv(printing.VARIABLE, "1")
    printing.report_error(SpecError("epochs", 0, "must be 1"))
    said = capsys.readouterr().err
    assert said.startswith("downpour.base.errors.SpecError: epochs")
    assert said.endswith("\ndownpour: epochs = 0: must be 1\n")


def test_a_line_is_never_a_flood(capsys: pytest.CaptureFixture[str]) -> None:
    """A reason from a peer can neither flood nor control the terminal."""
    printing.report_error(DownpourError("\x1b[2J" + "long " * 10_000))
    said = capsys.readouterr().err
    assert len(said) <= printing.LINE_CHARACTERS_MAX + len("downpour: \n")
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
        ["sh", "-c", f"{sys.executable} -m downpour run --epochs 0 {closed}"],
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
