"""Processes are killed, frozen, cut off and lied to, for real: the model has the same bytes.

What happens, and when, follows from a seed, which the test's name tells.
"""

from __future__ import annotations

from pathlib import Path
from threading import Event
from time import monotonic
from typing import TYPE_CHECKING, TypeVar

import pytest

from downpour import Spec
from downpour.record.record_lines import AssignedLine, WorkerLeftLine
from tests.chaos.stage import (
    FLAGS,
    PATIENCE_SECONDS,
    SPEC,
    happen_until_done,
    model_in,
    undisturbed,
)
from tests.chaos.watching import Watcher

if TYPE_CHECKING:
    from tests.chaos.stage import Stage

SEEDS = range(10)


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The model that comes of the spec when nothing happens."""
    return undisturbed(tmp_path_factory.mktemp("undisturbed"))


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize("stage", SEEDS, indirect=True)
def test_faults_leave_the_model_the_same(stage: Stage, expected: bytes) -> None:
    """Nothing is lost, nothing counts twice, and who watches sees the end."""
    client = stage.submit(*FLAGS)
    said = happen_until_done(stage, client, times=5)
    assert client.returncode == 0, (stage.story, said)
    assert model_in(stage.shared) == expected, stage.story


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize("compression", ["int8", "topk"])
@pytest.mark.parametrize("stage", [4], indirect=True)
def test_faults_lose_no_remainder_of_a_codec(
    stage: Stage, compression: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """What a shard still owes outlasts workers and managers, and the shard's moves."""
    spec = SPEC.replace(compression=compression)
    client = stage.submit(*FLAGS, "--compression", compression)
    said = happen_until_done(stage, client, times=5)
    assert client.returncode == 0, (stage.story, said)
    assert model_in(stage.shared) == undisturbed(tmp_path_factory.mktemp("calm"), spec)


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize("stage", [0], indirect=True)
def test_a_killed_worker_is_missed_when_its_connection_ends(stage: Stage, tmp_path: Path) -> None:
    """Its shard is given out again at once; ten seconds of silence are not waited for."""
    spec = Spec(shards=1, epochs=1, batch_size=1, model="mlp", model_options={"hidden": [2000] * 2})
    (tmp_path / "long.toml").write_text(spec.to_toml())
    with Watcher(stage.shared) as watcher:
        client = stage.submit(str(tmp_path / "long.toml"))
        given = first(watcher, AssignedLine)
        [busy] = [station for station in stage.stations if station.name == given.worker]
        busy.process.kill()
        left = first(watcher, WorkerLeftLine)
        client.kill()
        client.communicate()
    assert left.worker == given.worker
    # The call that brings the task may still be on its way.
    assert left.reason.startswith(("its connection ended and ", "the call failed: "))


Kind = TypeVar("Kind", AssignedLine, WorkerLeftLine)


def first(watcher: Watcher, kind: type[Kind]) -> Kind:
    """Wait for a fact of a kind."""
    deadline, pause = monotonic() + PATIENCE_SECONDS, Event()
    while monotonic() < deadline:
        for seen in watcher.story:
            if isinstance(seen.fact, kind):
                return seen.fact
        pause.wait(0.1)
    raise AssertionError(f"no {kind.__name__} in time")


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize("stage", [0], indirect=True)
def test_a_successor_goes_on_and_the_workers_find_it(stage: Stage, expected: bytes) -> None:
    """It answers elsewhere; the shared directory tells them where."""
    client = stage.submit(*FLAGS)
    stage.hand_over()
    client.kill()  # it was told the other address
    client.communicate()
    assert finished_in_time(stage.shared), stage.manager.said
    assert model_in(stage.shared) == expected


def finished_in_time(shared: Path) -> bool:
    """Wait for a model."""
    deadline, pause = monotonic() + PATIENCE_SECONDS, Event()
    while not list(shared.glob("experiments/*/model.safetensors")):
        if monotonic() > deadline:
            return False
        pause.wait(0.1)
    return True
