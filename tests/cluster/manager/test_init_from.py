"""An experiment that begins from a file: the manager alone reads it, and only as submitted."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import xxhash

from downpour.base.errors import SpecError
from downpour.base.states import ExperimentState
from downpour.core.spec import ResolvedSpec
from downpour.files.store import encode
from tests.cluster.manager.conftest import Arrays, Cluster, started_in


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
    lines = [json.loads(line) for line in cluster.record(experiment)]
    [prepared] = [line for line in lines if line["kind"] == "prepared"]
    assert prepared["remarks"] == [
        f"{file} lacks {names[0]}, so these start with random values from the seed",
        f"{file} also holds spare, which the network lacks",
    ]


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
    end = cluster.end_of(experiment).experiment
    assert end is not None
    assert end.state is ExperimentState.FAILED
    assert end.asked_wrongly
    assert end.reason is not None
    assert end.reason.startswith("init_from = '/")
    assert ": must have checksum " in end.reason


def test_a_file_of_another_network_fails_in_one_line(cluster: Cluster, tmp_path: Path) -> None:
    """Before a worker gets anything."""
    worker = cluster.join("one")
    file = write(tmp_path / "other.safetensors", {"w": np.zeros(1)})
    end = cluster.end_of(cluster.submit(init_from=str(file))).experiment
    assert end is not None
    assert end.asked_wrongly
    assert end.reason is not None
    assert ": belongs to another network: it has w; needed: " in end.reason
    assert worker.tasks == []


def test_another_manager_begins_from_the_same_file(tmp_path: Path) -> None:
    """The first one ended while the experiment was queued; the checksum is in the journal."""
    first = started_in(tmp_path)
    before = first.join("one")
    first.end_of(first.submit(epochs=1))
    arrays = {name: array * 2 for name, array in before.parameters(before.tasks[0]).items()}
    file = write(tmp_path / "begin.safetensors", arrays)
    before.behave = lambda *_: None
    waiting = first.submit(name="waiting")
    experiment = first.submit(init_from=str(file))
    first.close()
    second = started_in(tmp_path)
    second.client.cancel(waiting)
    after = second.join("two")
    summary = second.end_of(experiment).experiment
    began = after.parameters(next(t for t in after.tasks if t.id.round == 0))
    second.close()
    assert summary is not None
    assert summary.state is ExperimentState.FINISHED
    np.testing.assert_array_equal(began["conv1.bias"], arrays["conv1.bias"])
