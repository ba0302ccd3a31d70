"""The model that an experiment begins with, and the best one that it keeps."""

import json
from pathlib import Path
from threading import Event
from time import sleep
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import xxhash

from downpour.base.errors import SpecError
from downpour.core.spec import ResolvedSpec
from downpour.files.store import SharedDirectory, decode, encode, layout
from downpour.network.rpc.messages import TaskMessage
from downpour.record import Result
from downpour.show.tables.terminal_tables import result_table
from tests.cluster.manager.conftest import Arrays, Cluster, FakeWorker, Start, diligent
from tests.show.terminal import rendered

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
    cluster.result_of(experiment)
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


def test_examples_that_are_set_apart_are_validated_and_the_test_comes_once(
    cluster: Cluster,
) -> None:
    """No shard holds them; the best model is tested, and the record tells both apart."""
    worker = cluster.join("one")
    experiment = cluster.submit(**{**GROWING, "epochs": 3, "shards": 2}, validation=0.25)
    cluster.end_of(experiment)
    measured = [(f["round"], f["part"]) for f in cluster.facts(experiment, "measured")]
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


def write(path: Path, arrays: Arrays) -> Path:
    """Write a parameter file."""
    path.write_bytes(b"".join(encode(arrays, {})))
    return path


@pytest.fixture
def drawn(cluster: Cluster) -> Arrays:
    """The parameters that an experiment begins with by itself."""
    worker = cluster.join("first")
    cluster.end_of(cluster.submit(epochs=1))
    return worker.parameters(worker.tasks[0])


def test_tasks_begin_from_the_file_and_missing_tensors_are_on_record(
    cluster: Cluster, tmp_path: Path, drawn: Arrays
) -> None:
    """Only model 0 travels; what is missing keeps its seeded draw, and all is told."""
    names = sorted(drawn)
    arrays = {name: drawn[name] * 2 for name in names[1:]} | {"spare": np.zeros(1)}
    file = write(tmp_path / "begin.safetensors", arrays)
    experiment = cluster.submit(init_from=str(file))
    cluster.end_of(experiment)
    [*_, worker] = cluster.workers
    began = worker.parameters(next(t for t in worker.tasks if t.id.experiment == experiment))
    for name in names[1:]:
        np.testing.assert_array_equal(began[name], arrays[name])
    np.testing.assert_array_equal(began[names[0]], drawn[names[0]])
    [prepared] = cluster.facts(experiment, "prepared")
    assert prepared["remarks"] == [
        f"{file} lacks {names[0]}, so these start with random values from the seed",
        f"{file} also holds spare, which the network lacks",
    ]


def test_a_warning_comes_before_the_disk_is_full(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the files of a round may not fit, the record says how much room there is."""
    room = SimpleNamespace(free=1000)
    monkeypatch.setattr("downpour.cluster.manager.work.shutil.disk_usage", lambda _: room)
    cluster.join("first")
    experiment = cluster.submit(epochs=1)
    cluster.end_of(experiment)
    [prepared] = cluster.facts(experiment, "prepared")
    [warning] = [line for line in prepared["warnings"] if "free" in line]
    assert warning.startswith(f"{cluster.shared.root} has 1 kB free, and the experiment may need")


def test_an_experiments_final_model_is_named_by_its_id(cluster: Cluster, drawn: Arrays) -> None:
    """The resolved spec has the checksum, which is that of the model on record."""
    [first] = [one.experiment for one in cluster.client.list_experiments()]
    second = cluster.submit(init_from=first)
    cluster.end_of(second)
    folders = [cluster.shared.experiment_path(name) for name in (first, second)]
    final = (folders[0] / "model.safetensors").read_bytes()
    spec = ResolvedSpec.from_toml((folders[1] / "spec.toml").read_text())
    assert spec.init_checksum == xxhash.xxh3_128_hexdigest(final)
    [begun, *_] = sorted(folders[1].glob("model-*"))
    assert (begun.name[:12], drawn.keys()) == ("model-000000", drawn.keys())
    assert begun.read_bytes() == final


def test_a_changed_file_is_refused(cluster: Cluster, tmp_path: Path, drawn: Arrays) -> None:
    """Where the spec has a checksum it counts, at submission and when training begins."""
    file = write(tmp_path / "begin.safetensors", drawn)
    with pytest.raises(SpecError, match="must have checksum abc, not "):
        cluster.submit(init_from=str(file), init_checksum="abc")
    for worker in cluster.workers:
        worker.behave = lambda *_: None
    waiting = cluster.submit(name="waiting")
    experiment = cluster.submit(init_from=str(file))
    write(file, {name: array * 2 for name, array in drawn.items()})
    cluster.client.cancel(waiting)
    reason = cluster.refusal_of(experiment)
    assert reason.startswith("init_from = '/")
    assert ": must have checksum " in reason


def test_a_file_of_another_network_fails_in_one_line(cluster: Cluster, tmp_path: Path) -> None:
    """Before a worker gets anything."""
    worker = cluster.join("one")
    file = write(tmp_path / "other.safetensors", {"w": np.zeros(1)})
    reason = cluster.refusal_of(cluster.submit(init_from=str(file)))
    assert ": belongs to another network: it has w; needed: " in reason
    assert worker.tasks == []


def test_another_manager_begins_from_the_same_file(start: Start, tmp_path: Path) -> None:
    """The first one ended while the experiment was queued; the checksum is in the journal."""
    first = start()
    before = first.join("one")
    first.end_of(first.submit(epochs=1))
    arrays = {name: array * 2 for name, array in before.parameters(before.tasks[0]).items()}
    file = write(tmp_path / "begin.safetensors", arrays)
    before.behave = lambda *_: None
    waiting = first.submit(name="waiting")
    experiment = first.submit(init_from=str(file))
    first.close()
    second = start()
    second.client.cancel(waiting)
    after = second.join("two")
    second.result_of(experiment)
    began = after.parameters(next(t for t in after.tasks if t.id.round == 0))
    np.testing.assert_array_equal(began["conv1.bias"], arrays["conv1.bias"])
