"""`downpour logs` as a user types it: which lines, how they look, and what is refused."""

import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from downpour import Spec
from downpour import run as train
from downpour.files.log_places import FOLDER, FolderLogs, LogLine, LogPlace, logs_of
from downpour.files.store.layout import RECORD_NAME
from downpour.files.store.shared_directory import seen_location
from downpour.record.record import read_record
from tests.conftest import Allow
from tests.files.objects.cloud import URL, Cloud
from tests.files.objects.conftest import cloud

__all__ = ["cloud"]

Downpour = Callable[..., Any]
Refused = Callable[..., str]
RECORDED = Path(__file__).parents[1] / "recorded"
LINE = LogLine(
    at=1e9, host="red", name="worker-1", pid=1, level="info", source="stdout", text="hello"
)
ERROR = replace(
    LINE,
    at=1e9 + 1,
    host="blue",
    name="worker-2",
    level="error",
    source="downpour",
    text="the task failed \x1b[2J",
    trace="Traceback (most recent call last):\n  File x\nValueError: bad \x07",
)


def write(place: LogPlace, *lines: LogLine) -> None:
    """Write each line as the log of its process."""
    for line in lines:
        place.append(f"{line.host}-{line.name}.jsonl", line.to_bytes())


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    """A shared directory with the logs of two workers, and a recorded experiment."""
    (tmp_path / FOLDER).mkdir(parents=True)
    write(FolderLogs(tmp_path / FOLDER), LINE, ERROR)
    shutil.copytree(RECORDED / "handoff", tmp_path / "experiments" / "uneven-51c0")
    return tmp_path


def test_lines_name_their_host_and_process(downpour: Downpour, shared: Path) -> None:
    """In columns, by time; a traceback is whole, and nothing in it moves the cursor."""
    outcome = downpour("logs", "--shared", shared)
    assert (outcome.status, outcome.err) == (0, "")
    first, second, *trace = outcome.out.splitlines()
    assert first[19:] == " red worker-1  stdout  hello"
    assert second[19:] == r" blue worker-2 error   the task failed \x1b[2J"
    assert trace == [
        "    Traceback (most recent call last):",
        "      File x",
        r"    ValueError: bad \x07",
    ]


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        ([], ["hello", "failed"]),
        (["--worker", "worker-1"], ["hello"]),
        (["--worker", "blue"], ["failed"]),
        (["--level", "warning"], ["failed"]),
        (["--last", "1"], ["failed"]),
        (["--last", "0"], ["hello", "failed"]),
        (["--since", "1h"], []),
    ],
)
def test_options_choose_lines(
    downpour: Downpour, shared: Path, words: list[str], shown: list[str]
) -> None:
    """A process or its host, a level, an age, and the last few."""
    out = downpour("logs", "--shared", shared, *words).out
    assert [word for word in ("hello", "failed") if word in out] == shown


def test_an_experiments_lines_are_those_of_its_time(downpour: Downpour, shared: Path) -> None:
    """It is found by the beginning of its ID, and no manager has to run."""
    folder = shared / "experiments" / "uneven-20010909-014641-51c0"  # 1e9 + 1 s
    (shared / "experiments" / "uneven-51c0").rename(folder)
    os.utime(folder / RECORD_NAME, (1e9, 1e9))
    last, _ = read_record(folder / RECORD_NAME)[-1]
    place = FolderLogs(shared / FOLDER)
    write(place, replace(LINE, at=1e9 - 6, text="before"))
    write(place, replace(LINE, at=1e9 + last + 30, text="after"))
    outcome = downpour("logs", "uneven-2", "--shared", shared, "--worker", "worker-1")
    assert (outcome.status, outcome.err) == (0, "")
    [line] = outcome.out.splitlines()
    assert line.endswith("hello")


def test_without_logs_a_note_says_so(downpour: Downpour, tmp_path: Path) -> None:
    """Nothing is printed, and that is no failure."""
    outcome = downpour("logs", "--shared", tmp_path)
    assert (outcome.status, outcome.out) == (0, "")
    assert outcome.err == f"no process has kept a log in {tmp_path}\n"


@pytest.mark.parametrize("words", [["--worker", "worker-1", "--level", "error"], ["--since", "1h"]])
def test_a_note_says_so_where_no_line_fits(
    downpour: Downpour, shared: Path, words: list[str]
) -> None:
    """Silence would leave open whether there are logs at all; older files need not be read."""
    for file in (shared / FOLDER).iterdir():
        os.utime(file, (1e9, 1e9))
    outcome = downpour("logs", "--shared", shared, *words)
    assert (outcome.status, outcome.out) == (0, "")
    assert outcome.err == f"no line in the logs of {shared} fits these options\n"


def test_a_name_that_no_process_has_is_refused(refused: Refused, shared: Path) -> None:
    """With the names that there are."""
    line = refused("logs", "--shared", shared, "--worker", "worker-3")
    assert "worker = 'worker-3': must be one of blue, red, worker-1, worker-2" in line


def test_following_shows_what_is_added(
    downpour: Downpour, shared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until Ctrl-C."""
    later = iter([replace(LINE, at=1e9 + 5, text="later"), replace(LINE, text="later still")])

    def pass_by(_: float) -> None:
        line = next(later, None)
        if line is None:
            raise KeyboardInterrupt
        write(FolderLogs(shared / FOLDER), line)

    monkeypatch.setattr("downpour.cli.showing.time.sleep", pass_by)
    outcome = downpour("logs", "--shared", shared, "--follow", "--worker", "worker-1")
    assert outcome.status == 130
    assert [line.split()[-1] for line in outcome.out.splitlines()] == ["hello", "later", "still"]


def test_logs_of_an_object_store_are_read_there(downpour: Downpour, cloud: Cloud) -> None:
    """By any machine that reaches the bucket."""
    cloud.on("manager", create=True)
    write(logs_of(seen_location(URL)), LINE, ERROR)
    outcome = downpour("logs", "--shared", URL, "--level", "error")
    assert (outcome.status, outcome.err) == (0, "")
    assert "blue worker-2 error" in outcome.out


@pytest.mark.slow
def test_the_output_of_user_code_on_any_worker_is_found(
    tmp_path: Path, allowing: Allow, downpour: Downpour, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A task prints on each worker, and fails on one: the log names it, with the traceback."""
    (tmp_path / "talking.py").write_text(TALKING)
    allowing(tmp_path, "talking")
    spec = Spec(dataset="digits", model="talking:make", shards=2, epochs=1, retries=5)
    monkeypatch.setenv("TALKING_FAILED", str(tmp_path / "failed"))
    result = train(spec, workers=2, shared=tmp_path / "shared")
    out = downpour("logs", result.experiment, "--shared", tmp_path / "shared").out
    lines = out.splitlines()
    assert {line.split()[3] for line in lines if "trains for the user" in line} >= {
        "worker-1",
        "worker-2",
    }
    [place] = [number for number, line in enumerate(lines) if line.endswith("OSError: no luck")]
    before = next(line for line in reversed(lines[:place]) if not line.startswith(" "))
    assert before.split()[3] in {"worker-1", "worker-2"}
    assert " warning " in before


TALKING = """
import os
import torch

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(64, 10)
        self.steps = 0

    def forward(self, x):
        self.steps += 1
        if self.steps == 12:
            print("trains for the user")
            try:
                os.mkdir(os.environ["TALKING_FAILED"])
            except FileExistsError:
                pass
            else:
                raise OSError("no luck")
        return self.layer(x.flatten(1))

def make():
    return Net()
"""
