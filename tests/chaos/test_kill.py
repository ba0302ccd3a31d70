"""Managers and workers are killed, frozen and lied to, for real: the model has the same bytes.

What happens, and when, follows from a seed, which the test's name tells.
"""

from __future__ import annotations

from pathlib import Path
from threading import Event
from time import monotonic
from typing import TYPE_CHECKING

import pytest

from downpour import Spec, run
from tests.chaos.conftest import PATIENCE_SECONDS, happen_until_done

if TYPE_CHECKING:
    from tests.chaos.conftest import Stage

SPEC = Spec(shards=4, epochs=12, seed=3)
FLAGS = "--shards", "4", "--epochs", "12", "--seed", "3"
SEEDS = range(10)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The model that comes of the spec when nothing happens."""
    result = run(SPEC, workers=2, shared=tmp_path_factory.mktemp("undisturbed"))
    assert result.model_file is not None
    return result.model_file.read_bytes()


def model_in(shared: Path) -> bytes:
    """The model of the one experiment in a shared directory."""
    [model] = shared.glob("experiments/*/model.safetensors")
    return model.read_bytes()


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("stage", SEEDS, indirect=True)
def test_whatever_happens_the_model_is_the_same(stage: Stage, undisturbed: bytes) -> None:
    """Nothing is lost, nothing counts twice, and who watches sees the end."""
    client = stage.submit(*FLAGS)
    said = happen_until_done(stage, client, times=5)
    assert client.returncode == 0, (stage.story, said)
    assert model_in(stage.shared) == undisturbed, stage.story


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("stage", [0], indirect=True)
def test_a_successor_goes_on_and_the_workers_find_it(stage: Stage, undisturbed: bytes) -> None:
    """It answers elsewhere; the shared directory tells them where."""
    client = stage.submit(*FLAGS)
    stage.hand_over()
    client.kill()  # it was told the other address
    client.communicate()
    assert finished_in_time(stage.shared), stage.manager.said
    assert model_in(stage.shared) == undisturbed


def finished_in_time(shared: Path) -> bool:
    """Wait for a model."""
    deadline, pause = monotonic() + PATIENCE_SECONDS, Event()
    while not list(shared.glob("experiments/*/model.safetensors")):
        if monotonic() > deadline:
            return False
        pause.wait(0.1)
    return True
