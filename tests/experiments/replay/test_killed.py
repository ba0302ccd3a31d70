"""Real processes, killed while they train: a replay still comes to the same bytes."""

import json
import os
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from downpour.core.modes import MODES
from downpour.record.record_lines import AggregatedLine, FinishedLine, WorkerLeftLine
from tests.chaos import forked
from tests.chaos.stage import PATIENCE_SECONDS, Stage
from tests.chaos.watching import Watcher

SHARDS, EPOCHS = 4, 20
FLAGS = "--shards", str(SHARDS), "--epochs", str(EPOCHS)
OPTIONS = "--optimizer", "adam", "--optimizer-state", "keep", "--compression", "topk"


Strike = tuple[int, Callable[[Stage], None]]
"""What is done to whom, after how many versions."""


def until_versions(watcher: Watcher, count: int) -> None:
    """Wait until the experiment has this many versions."""
    made = 0
    while made < count:
        watcher.wait(0.01)
        made = sum(isinstance(seen.fact, AggregatedLine) for seen in watcher.story)


def until_a_worker_is_lost(watcher: Watcher) -> None:
    """Wait until the manager has noticed that a worker was killed, or all is over."""
    while not any(isinstance(s.fact, WorkerLeftLine | FinishedLine) for s in watcher.story):
        watcher.wait(0.01)


def replayed(shared: Path) -> dict[str, Any]:
    """Replay the directory's experiment in a process of its own, which has no more than that."""
    [model] = shared.glob("experiments/*/model.safetensors")
    words = ["replay", model.parent.name, "--shared", str(shared), "--json"]
    again = forked.run([*words, "--to", str(shared / "again")], os.environ)
    assert again.returncode == 0, again
    told: dict[str, Any] = json.loads(again.stdout)
    assert told["same"]
    assert Path(told["model_file"]).read_bytes() == model.read_bytes()
    return told


def disturbed(shared: Path, flags: Sequence[str], strikes: Sequence[Strike]) -> Watcher:
    """Run four shards on three workers, and strike when the experiment has a number of versions."""
    with ExitStack() as stack:
        stage = Stage(shared, 3, workers=3)
        stack.callback(stage.close)
        watcher = stack.enter_context(Watcher(shared))
        client = stage.submit(*flags)
        for count, strike in strikes:
            until_versions(watcher, count)
            strike(stage)
            if strike is Stage.kill_worker:
                until_a_worker_is_lost(watcher)
        said, _ = client.communicate(timeout=PATIENCE_SECONDS)
        assert client.returncode == 0, said
    return watcher


@pytest.mark.slow
@pytest.mark.timeout(500)
def test_a_replay_has_the_bytes_of_an_experiment_that_was_disturbed(tmp_path: Path) -> None:
    """Four shards and three workers in `downpour`; a worker and the manager are killed, twice."""
    strikes = (
        (8, Stage.kill_worker),
        (20, Stage.kill_manager),
        (32, Stage.kill_worker),
        (44, Stage.kill_manager_at_its_journal),
    )
    watcher = disturbed(tmp_path, (*FLAGS, "--mode", "downpour", *OPTIONS), strikes)
    assert any(isinstance(seen.fact, WorkerLeftLine) for seen in watcher.story)
    staleness = [s for seen in watcher.story for s in getattr(seen.fact, "staleness", ())]
    assert max(staleness) > 0, "no task was overtaken: nothing asynchronous was shown"
    assert replayed(tmp_path)["compared"] == 1 + 80 + 80 + 1


@pytest.mark.slow
@pytest.mark.timeout(500)
@pytest.mark.parametrize("mode", sorted(set(MODES) - {"sync", "downpour"}))
def test_each_other_mode_outlives_kills_with_bytes_that_can_be_replayed(
    tmp_path: Path, mode: str
) -> None:
    """A worker is killed and then the manager twice, which knows who has registered with it."""
    strikes = (
        (3, Stage.kill_worker),
        (6, Stage.kill_manager),
        (9, Stage.kill_manager_at_its_journal),
    )
    watcher = disturbed(tmp_path, (*FLAGS, "--mode", mode), strikes)
    assert any(isinstance(seen.fact, WorkerLeftLine) for seen in watcher.story)
    assert replayed(tmp_path)["compared"] > EPOCHS * SHARDS, "each task, and the versions"
