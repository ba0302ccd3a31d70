"""Runs with slow workers and kills: real processes, which end with the same bytes as without."""

from pathlib import Path
from statistics import median

import pytest

import downpour
from downpour.files.store.layout import RECORD_NAME
from downpour.record import Result
from downpour.record.record import read_record
from downpour.record.record_lines import DisturbedLine
from tests.specs import model_of

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("forked_clusters")]

SPEC = downpour.Spec(shards=2, epochs=5, batch_size=1, learning_rate=0.002, policy="wait")
"""Its rounds take half a second or more, so a kill comes in time."""


def disturbances(result: Result) -> list[str]:
    """Return what the record of a run says of them."""
    assert result.model_file is not None
    record = read_record(result.model_file.with_name(RECORD_NAME))
    return [str(line) for _, line in record if isinstance(line, DisturbedLine)]


@pytest.fixture(scope="module")
def calm(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The model of an undisturbed run."""
    shared = tmp_path_factory.mktemp("calm")
    result = downpour.run(SPEC, workers=2, shared=shared, progress=False)
    assert disturbances(result) == []
    return model_of(result)


def test_a_slowed_worker_is_slower_and_not_lost(tmp_path: Path, calm: bytes) -> None:
    """At a fifth of its speed, steps take about five times as long, give or take other tests."""
    slow = {"worker-2": 0.2}
    result = downpour.run(SPEC, workers=2, shared=tmp_path, progress=False, slow=slow)
    paces = {
        name: median(
            task.train_seconds / task.steps for task in result.tasks if task.worker == name
        )
        for name in ("worker-1", "worker-2")
    }
    ratio = paces["worker-2"] / paces["worker-1"]
    assert ratio > 2
    assert ratio < 15
    assert not any("lost" in change for change in result.worker_changes)
    assert result.failures == ()
    assert disturbances(result) == ["worker-2 runs at 0.2 of its speed"]
    assert model_of(result) == calm


@pytest.mark.parametrize(
    ("kill", "said"),
    [
        ("manager@round3", "manager is killed and starts again"),
        ("worker-2@round3", "worker-2 is killed and stays away"),
        ("worker-2@0s,restart", "worker-2 is killed and starts again"),
    ],
)
def test_kills_change_no_byte_of_the_model(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, calm: bytes, kill: str, said: str
) -> None:
    """The record has the kill, whoever goes on, and a callback misses no epoch.

    A line names the signal of a manager's end: 9 without a `kill` tells of memory. A worker that
    stays away trains no more.
    """
    epochs: list[int] = []
    result = downpour.run(
        SPEC,
        workers=2,
        shared=tmp_path,
        progress=False,
        kill=[kill],
        on_round=lambda epoch: epochs.append(epoch.epoch),
    )
    assert result.state == "finished"
    assert disturbances(result) == [said]
    assert model_of(result) == calm
    assert epochs == [1, 2, 3, 4, 5]
    died = "the manager died from signal 9; restarting it" in caplog.text
    assert died == (kill == "manager@round3")
    if kill == "worker-2@round3":
        assert {task.worker for task in result.tasks if task.round == 5} == {"worker-1"}
