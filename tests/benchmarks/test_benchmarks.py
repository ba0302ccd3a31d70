"""The benchmarks start; what they measure is not a matter of tests."""

import runpy
import sys
import time
from pathlib import Path

import pytest
import torch

FOLDER = Path(__file__).parents[2] / "benchmarks"

SHARED = {"common", "idle", "lenet", "networks", "padded", "slowing", "sparse_store", "token_task"}
SHARED |= {"virtual_training", "wrong_worker"}

NAMES = sorted(path.stem for path in FOLDER.glob("*.py") if path.stem not in SHARED)


@pytest.mark.parametrize("name", NAMES)
def test_a_benchmark_explains_itself(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each imports what there is, and `--help` tells of its options, `--json` among them."""
    monkeypatch.syspath_prepend(FOLDER)
    monkeypatch.setattr(sys, "argv", [f"{name}.py", "--help"])
    with pytest.raises(SystemExit) as left:
        runpy.run_path(str(FOLDER / f"{name}.py"), run_name="__main__")
    assert left.value.code == 0
    assert "--json" in capsys.readouterr().out


def test_every_benchmark_can_be_run_with_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that nobody runs would go stale."""
    monkeypatch.syspath_prepend(FOLDER)
    known = runpy.run_path(str(FOLDER / "run.py"))["ALL"]
    assert sorted([*known, "run"]) == NAMES


def test_a_padded_step_takes_its_time_in_training_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """An evaluation is as quick as the network is."""
    monkeypatch.syspath_prepend(FOLDER)
    monkeypatch.setenv("LAB_EXAMPLE_SECONDS", "0.05")
    network = runpy.run_path(str(FOLDER / "padded.py"))["build"](10)
    images = torch.zeros(8, 1, 28, 28)
    began = time.perf_counter()
    network(images)
    assert time.perf_counter() - began >= 8 * 0.05
    waits: list[float] = []
    monkeypatch.setattr(time, "sleep", waits.append)
    network.eval()(images)
    assert not waits


def test_medians_leave_out_runs_without_a_figure(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that could not be made has no columns; the load is the highest."""
    monkeypatch.syspath_prepend(FOLDER)
    medians = runpy.run_path(str(FOLDER / "lab.py"))["medians"]
    runs = [{"end_seconds": 1.0, "checksum": "ab", "load": 1.0}, {}]
    runs += [{"end_seconds": 3.0, "checksum": "cd", "load": 4.0}]
    assert medians(runs) == {"end_seconds": 2.0, "checksum": "ab cd", "load": 4.0}
    assert medians([{"end_seconds": None}]) == {"end_seconds": "never"}


def test_a_line_of_the_record_is_what_other_systems_say(monkeypatch: pytest.MonkeyPatch) -> None:
    """Most lines are none of these."""
    monkeypatch.syspath_prepend(FOLDER)
    for name in [name for name in sys.modules if name == "peers" or name.startswith("peers.")]:
        monkeypatch.delitem(sys.modules, name)
    event_of = runpy.run_path(str(FOLDER / "peers" / "lab_record.py"))["event_of"]
    assert event_of({"kind": "measured", "metrics": {"accuracy": 0.5}})["accuracy"] == 0.5
    end = event_of({"kind": "finished", "checksum": "0123456789"})
    assert (end["event"], end["checksum"]) == ("end", "01234567")
    assert event_of({"kind": "worker-joined"}) is None
