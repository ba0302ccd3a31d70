"""The best model lies beside the final one, and training ends where none gets better."""

from __future__ import annotations

import json
from pathlib import Path
from threading import Event
from time import sleep
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from downpour.base.errors import SpecError
from downpour.base.states import ExperimentState
from downpour.files.store import SharedDirectory, decode, layout
from downpour.network.rpc.messages import TaskMessage
from downpour.record import Result
from downpour.show.tables.terminal_tables import result_table
from tests.cluster.manager.conftest import Cluster, diligent
from tests.show.tables.test_terminal_tables import rendered

if TYPE_CHECKING:
    from tests.cluster.manager.conftest import FakeWorker

PATIENCE_SECONDS = 30.0
GROWING: dict[str, Any] = {"shards": 1, "epochs": 9, "keep_best": "loss", "keep_models": 1}
"""With workers that add to every parameter, so that the first model is the best."""


def parameters(folder: Path, name: str) -> dict[str, np.ndarray[Any, Any]]:
    """Read a model's file."""
    return dict(decode((folder / name).read_bytes(), name).tensors)


def test_the_best_model_is_kept_and_a_run_that_gets_worse_ends(cluster: Cluster) -> None:
    """Two rounds after the best one; its version is not pruned before it lies under its name."""
    cluster.join("one")
    experiment = cluster.submit(**GROWING, stop_after=2)
    assert cluster.end_of(experiment).experiment.state is ExperimentState.FINISHED  # type: ignore[union-attr]
    folder = cluster.shared.experiment_path(experiment)
    result = Result.read(folder)
    assert [r.epoch for r in result.rounds] == [1, 2, 3]
    assert result.reason == "no better loss since epoch 1"
    assert result.best is not None
    assert (result.best.epoch, result.best.value) == (1, result.rounds[0].test_loss)
    assert result.best.file == folder / "best.safetensors"
    best, final = parameters(folder, "best.safetensors"), parameters(folder, "model.safetensors")
    for name, array in best.items():
        np.testing.assert_allclose(final[name], array + 2, rtol=1e-5)
    while len(list(folder.glob("model-*"))) > 1:  # versions are removed after the end is told
        sleep(0.02)
    told = json.loads(result.to_json())
    assert told["best"]["file"].endswith("best.safetensors")


def test_a_run_that_is_cancelled_keeps_the_version_that_was_best(cluster: Cluster) -> None:
    """It has no result, but the record names the file."""
    trained = Event()

    def until(worker: FakeWorker, task: TaskMessage) -> None:
        if task.id.round < 3:
            diligent(worker, task)
        else:
            trained.set()

    cluster.join("one", until)
    experiment = cluster.submit(**GROWING)
    assert trained.wait(PATIENCE_SECONDS)
    cluster.client.cancel(experiment)
    folder = SharedDirectory.open(cluster.shared.root, create=False).experiment_path(experiment)
    best = Result.read(folder).best
    assert best is not None
    assert best.file is not None
    assert best.file.name.startswith("model-000001-")
    assert best.file.exists()
    assert not (folder / layout.BEST_NAME).exists()


def test_a_metric_that_is_not_measured_is_told_at_once(cluster: Cluster) -> None:
    """The built-in task measures accuracy alone: nothing is begun."""
    with pytest.raises(SpecError, match=r"^keep_best = 'bleu': must be accuracy or loss"):
        cluster.submit(keep_best="bleu")


def test_examples_that_are_set_apart_are_validated_and_the_test_comes_once(
    cluster: Cluster,
) -> None:
    """No shard holds them; the best model is tested, and the record tells both apart."""
    worker = cluster.join("one")
    experiment = cluster.submit(**{**GROWING, "epochs": 3, "shards": 2}, validation=0.25)
    cluster.end_of(experiment)
    facts = [json.loads(line) for line in cluster.record(experiment)]
    measured = [(f["round"], f["part"]) for f in facts if f["kind"] == "measured"]
    assert measured == [*((n, "validation") for n in range(3)), (0, "test")]
    result = Result.read(cluster.shared.experiment_path(experiment))
    assert result.best is not None
    assert result.tested is not None
    assert (result.best.value, result.tested.epoch) == (result.rounds[0].test_loss, 1)
    assert result.tested.loss != result.best.value
    assert result.metrics == result.tested.metrics
    trained = {int(i) for task in worker.tasks for i in task.indices}  # type: ignore[union-attr]
    assert len(trained) == result.train_samples - int(result.train_samples * 0.25)
    said = rendered(result_table(result))
    assert "validation" in said
    assert "test of the model after epoch 1: accuracy " in said
    assert result.to_csv().splitlines()[0].startswith("epoch,round,accuracy,train_loss,")
    assert "validation_loss" in result.to_csv()
    assert "test_loss" not in result.to_csv()
