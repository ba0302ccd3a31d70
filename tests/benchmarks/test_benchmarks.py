"""The benchmarks start; what they measure is not a matter of tests."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "benchmarks"
SHARED = {"common", "idle", "lenet", "networks", "padded", "slowing", "virtual_training"}
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
