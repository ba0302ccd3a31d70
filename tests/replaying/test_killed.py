"""Real processes, killed while they train: a replay still comes to the same bytes."""

from __future__ import annotations

import json
import subprocess
from contextlib import ExitStack
from pathlib import Path

import pytest

from downpour.records.record_lines import AggregatedLine, WorkerLeftLine
from tests.chaos.stage import COMMAND, PATIENCE_SECONDS, Stage
from tests.chaos.watching import Watcher

FLAGS = "--shards", "4", "--epochs", "20", "--mode", "downpour"
OPTIONS = "--optimizer", "adam", "--optimizer-state", "keep", "--compression", "topk"


def until_versions(watcher: Watcher, count: int) -> None:
    """Wait until the experiment has this many versions."""
    made = 0
    while made < count:
        watcher.wait(0.01)
        made = sum(isinstance(seen.fact, AggregatedLine) for seen in watcher.story)


@pytest.mark.slow
@pytest.mark.timeout(500)
def test_a_replay_has_the_bytes_of_an_experiment_that_was_disturbed(tmp_path: Path) -> None:
    """Four shards and three workers in `downpour`; a worker and the manager are killed, twice.

    The replay is a process of its own, and has no more than the shared directory.
    """
    with ExitStack() as stack:
        stage = Stage(tmp_path, 3, workers=3)
        stack.callback(stage.close)
        watcher = stack.enter_context(Watcher(tmp_path))
        client = stage.submit(*FLAGS, *OPTIONS)
        for count, strike in (
            (8, stage.kill_worker),
            (20, stage.kill_manager),
            (32, stage.kill_worker),
            (44, stage.kill_manager_at_its_journal),
        ):
            until_versions(watcher, count)
            strike()
        said, _ = client.communicate(timeout=PATIENCE_SECONDS)
        assert client.returncode == 0, said
    assert any(isinstance(seen.fact, WorkerLeftLine) for seen in watcher.story)
    staleness = [s for seen in watcher.story for s in getattr(seen.fact, "staleness", ())]
    assert max(staleness) > 0, "no task was overtaken: nothing asynchronous was shown"
    [model] = tmp_path.glob("experiments/*/model.safetensors")
    words = ["replay", model.parent.name, "--shared", str(tmp_path), "--json"]
    again = subprocess.run(
        [*COMMAND, *words, "--to", str(tmp_path / "again")],
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_SECONDS,
    )
    assert again.returncode == 0, (again, stage.story)
    told = json.loads(again.stdout)
    assert told["same"]
    assert told["compared"] == 1 + 80 + 80 + 1
    assert Path(told["model_file"]).read_bytes() == model.read_bytes()
