"""How far a study is, also one that outlives the terminal: begun, killed, resumed."""

import io
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

from downpour.base.errors import SpecError, spoken
from downpour.experiments.studies import Grid, StudyFolder, run_study
from downpour.experiments.studies.folder import LOG_NAME, held, holder, status_of
from downpour.experiments.studies.running import StudyDisplay, detach
from downpour.experiments.studies.search import SearchPlan
from downpour.experiments.studies.study import RunSummary, about
from downpour.record import Result
from tests.experiments.studies.conftest import (
    GRID,
    SEARCH,
    FakeBackend,
    Interruption,
    Silence,
    grid_folder,
    record_of,
    search_folder,
)
from tests.waiting import until


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(0.4, "0 s"), (43, "43 s"), (750, "12 min"), (12_000, "3 h 20 min"), (3599, "60 min")],
)
def test_durations_are_said_as_people_do(seconds: float, said: str) -> None:
    """Seconds, minutes, or hours with minutes."""
    assert spoken(seconds) == said


def test_the_time_left_of_a_grid_follows_from_the_same_groups(tmp_path: Path) -> None:
    """A slow setting's second repetition counts as slow, and one never run as the usual."""
    folder = grid_folder(tmp_path, 'name="small"\ntrials=2\nworkers=[1, 2, 3]\n')
    folder.path.mkdir(parents=True)
    folder.begin()
    assert about(status_of(folder).seconds_left) == "unknown time"
    for run, seconds in zip(folder.study.runs.values(), (600.0, 60.0), strict=False):
        record = record_of(run)
        result = Result.from_lines(record.decode().splitlines())
        folder.keep(run, record, RunSummary.of(result, run.workers, seconds))
    # 330 s twice for the third setting, and the second repetitions of the others.
    left = status_of(folder).seconds_left
    assert left == 2 * 330 + 600 + 60
    assert about(left) == "about 22 min"
    run_study(folder, FakeBackend(), Silence())
    assert status_of(folder).seconds_left == 0


def test_the_time_left_of_a_search_follows_from_its_runs(tmp_path: Path) -> None:
    """Unknown before the first has ended, nothing once all have."""
    folder = search_folder(tmp_path)
    assert status_of(folder).seconds_left is None
    run_study(folder, FakeBackend(), Silence())
    assert status_of(folder).seconds_left == 0.0
    twice = search_folder(tmp_path, SEARCH.replace("trials = 12", "trials = 24"))
    took = sum(ended.summary.wall_seconds for ended in folder.ended())
    assert status_of(twice).seconds_left == pytest.approx(took)


def test_a_line_a_run_of_a_grid_goes_to_the_log(tmp_path: Path) -> None:
    """Where no bars are drawn, each run's end is told with what is left."""
    folder = grid_folder(tmp_path)
    hopeless = list(folder.study.runs)[-1]
    said: list[str] = []
    with StudyDisplay(Console(file=io.StringIO()), said.append) as display:
        run_study(folder, FakeBackend(hopeless={hopeless}), display)
    assert len(said) == 10
    known = r"1/10 w1-random-average-s0-\w+ \(workers 1, seed 0\) .* in \d+ s, about \d+ s left"
    assert re.fullmatch(known, said[0])
    setting = r"\(split class, aggregate first, seed 1\)"
    assert re.fullmatch(rf"9/10 {hopeless} {setting} failed: no luck in \d+ s", said[-1])


def test_a_line_tells_of_each_run_of_a_search_and_the_bar_of_the_best(tmp_path: Path) -> None:
    """Its number, its outcome, its values, and whether it is the best so far."""
    folder = search_folder(tmp_path)
    lines: list[str] = []
    file = io.StringIO()
    console = Console(file=file, force_terminal=True, width=100)
    with StudyDisplay(console, lines.append) as display:
        run_study(folder, FakeBackend(hopeless={2}), display)
    assert len(lines) == 12
    assert lines[0].startswith("1/12 run 1 finished accuracy ")
    assert "learning rate " in lines[0]
    assert "dropout 0." in lines[0]
    assert lines[0].endswith("(the best so far)")
    assert lines[1].startswith("2/12 run 2 failed: no luck in 0 s: batch size ")
    assert any(": pruned after epoch" in line for line in lines)
    best = SearchPlan(folder.study, folder.ended()).result.best
    assert best is not None
    assert best.value is not None
    assert f"runs, best {best.value:.2%}" in file.getvalue()


def test_a_run_of_bad_luck_is_not_counted_as_done(tmp_path: Path) -> None:
    """It is reported, and counts as the others once it has been repeated."""
    folder = search_folder(tmp_path)
    lines: list[str] = []
    for unlucky in ({2, 3}, set[int]()):
        with StudyDisplay(Console(file=io.StringIO()), lines.append) as display:
            run_study(folder, FakeBackend(unlucky=unlucky), display)
    assert [line.split()[0] for line in lines[:4]] == ["1/12", "1/12", "1/12", "2/12"]
    assert [" ".join(line.split()[:3]) for line in lines[12:]] == ["11/12 run 2", "12/12 run 3"]


def test_the_status_counts_from_the_folder(tmp_path: Path) -> None:
    """Also while another process runs the study, and names it."""
    folder = grid_folder(tmp_path)
    with pytest.raises(Interruption):
        run_study(folder, FakeBackend(interrupted_at={4}), Silence())
    status = status_of(folder)
    told = status.to_dict()
    assert (told["finished"], told["cells"], told["running"]) == (3, 10, None)
    assert str(status).endswith("left, no process runs it now")
    with held(folder.path):
        assert status_of(folder).running == holder(folder.path)
        assert "runs it" in str(status_of(folder))
    run_study(folder, FakeBackend(), Silence())
    assert str(status_of(folder)) == "small: 10 of 10 runs"
    assert status_of(folder).to_dict()["failures"] == {}


def test_the_status_of_a_search_has_all_runs(tmp_path: Path) -> None:
    """Of a search that is done neither the time left nor a process is told."""
    run_study(search_folder(tmp_path), FakeBackend(), Silence())
    grown = search_folder(tmp_path, SEARCH.replace("trials = 12", "trials = 14"))
    assert str(status_of(grown)).endswith("about 0 s left, no process runs it now")
    with held(grown.path):
        assert str(status_of(grown)).endswith("runs it")
        told = status_of(grown).to_dict()
    assert told["running"].startswith("process ")
    assert (told["asked"], len(told["trials"])) == (14, 12)
    assert "left" not in str(status_of(search_folder(tmp_path)))


COMMAND = [sys.executable, "-m", "downpour", "grid"]
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
    folder.path.mkdir(parents=True)
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
