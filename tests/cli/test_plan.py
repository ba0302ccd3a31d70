"""`downpour plan`: a probe on real workers, and what it leaves behind."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Allow


@pytest.mark.slow
def test_a_plan_is_made_on_the_workers_that_will_train(
    downpour: Callable[..., Any], tmp_path: Path, allowing: Allow
) -> None:
    """It has alternatives and intervals; only the prepared data stay in the folder.

    A task's own optimizer decides for the plan what it decides for the run.
    """
    allowing(Path(__file__).parents[1] / "learning" / "tasks", "own_tasks")
    shared = tmp_path / "shared"
    words = "plan", "--shards", "2", "--workers", "2", "--epochs", "9", "--shared", shared
    planned = downpour(*words, "--json")
    assert planned.status == 0
    found = json.loads(planned.out)
    assert found["epochs"] == 9
    names = [one["name"] for one in found["plans"]]
    assert names == ["as it is", "meet = 1", "overlap = 1", "1 worker, the fastest"]
    for one in found["plans"]:
        assert 0 < one["low_seconds"] < one["seconds"] < one["high_seconds"]
        assert one["bytes"] > 0
    assert not list((shared / "experiments").iterdir())
    assert list((shared / "datasets").iterdir())
    asked = "--task", "own_tasks:Grouped"  # its optimizer gains from none
    shown = downpour(*words, *asked).out
    assert "limited by" in shown
    assert "meet = 1" not in shown


@pytest.mark.slow
def test_a_plan_is_made_for_machines_of_a_file(
    downpour: Callable[..., Any], tmp_path: Path
) -> None:
    """One worker trains for all of them, with a shard for each; the file counts the workers."""
    file = tmp_path / "machines.toml"
    file.write_text("[fast]\ncount = 2\n[slow]\nspeed = 0.25\nmegabits = 40")
    spec = tmp_path / "spec.toml"
    spec.write_text('inside = "auto"')  # the probe measures it
    words = "plan", spec, "--machines", file, "--epochs", "9", "--shared", tmp_path / "shared"
    planned = downpour(*words, "--json")
    assert planned.status == 0
    names = [one["name"] for one in json.loads(planned.out)["plans"]]
    assert names[-1] == "2 workers, the fastest"
    refused = downpour(*words, "--workers", "3")
    assert refused.err == "downpour: workers = 3: cannot go with --machines, which counts them\n"
