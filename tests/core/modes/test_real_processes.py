"""Asynchronous modes as a user meets them: real processes, sockets and files."""

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import downpour
from downpour.core.modes import MODES
from downpour.experiments.surroundings import Surroundings
from downpour.experiments.training import embed
from downpour.files.store import decode
from downpour.record.record import read_record
from downpour.record.record_lines import AggregatedLine
from tests.specs import model_of

pytestmark = pytest.mark.usefixtures("forked_clusters")

SHARDS, EPOCHS, MEET = 3, 3, 2


@pytest.fixture(scope="module")
def cluster(
    tmp_path_factory: pytest.TempPathFactory, forked_clusters: None
) -> Iterator[downpour.Client]:
    """A client of a cluster with two workers; each is a process."""
    del forked_clusters
    surroundings = Surroundings(tmp_path_factory.mktemp("cluster"))
    with embed(downpour.Spec(), 2, surroundings) as (_, client):
        next(status for status in client.watch() if len(status.workers) == 2)
        yield client


def trained(folder: Path, workers: int, **fields: Any) -> downpour.Result:
    """Train with workers that are threads of this process."""
    spec = downpour.Spec.make({"shards": SHARDS, "epochs": EPOCHS, **fields})
    result = downpour.run(spec, workers=workers, shared=folder, on="inline")
    assert result.state == "finished"
    return result


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "mode",
    [name if name == "downpour" else pytest.param(name, marks=pytest.mark.slow) for name in MODES],
)
def test_every_task_counts_once_and_every_epoch_is_measured(
    mode: str, cluster: downpour.Client
) -> None:
    """Two workers train three shards; what each version is made of is in the record."""
    fields = {"mode": mode, "shards": SHARDS, "epochs": EPOCHS, "meet": MEET, "seed": 7}
    result = cluster.wait(cluster.submit(downpour.Spec.make(fields)))
    assert result.state == "finished"
    assert [epoch.epoch for epoch in result.epochs] == [1, 2, 3]
    assert all(epoch.accuracy is not None for epoch in result.epochs)
    tasks = Counter((task.round, task.shard) for task in result.tasks)
    wanted = [(r + 1, s) for r in range(EPOCHS * MEET) for s in range(SHARDS)]
    assert tasks == Counter(wanted)
    assert result.model_file is not None
    record = read_record(result.model_file.with_name("record.jsonl"))
    made = [line for _, line in record if isinstance(line, AggregatedLine)]
    parts = Counter(part for line in made for part in line.parts)
    in_step = downpour.Spec.make({"mode": mode}).in_step
    assert parts == (Counter() if in_step else Counter((r - 1, s) for r, s in wanted))


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_rounds_that_overlap_have_the_bytes_of_their_spec(tmp_path: Path) -> None:
    """However many workers there are, and whichever of them was first; one epoch has all steps."""
    few, many, waiting = (
        trained(tmp_path, workers, meet=MEET, overlap=overlap, train_limit=400)
        for workers, overlap in ((1, 1), (SHARDS, 1), (1, 0))
    )
    assert model_of(few) == model_of(many) != model_of(waiting)
    steps = [sum(task.steps for task in result.tasks) for result in (few, waiting)]
    assert steps[0] == steps[1]


@pytest.mark.timeout(300)
@pytest.mark.parametrize("overlap", [pytest.param(0, marks=pytest.mark.slow), 1])
def test_versions_that_are_steps_have_the_bytes_of_their_spec(overlap: int, tmp_path: Path) -> None:
    """However many workers read them; of two with three shards, one may lack the version before."""
    fields: dict[str, Any] = {"meet": 12, "overlap": overlap, "train_limit": 400, "batch_size": 8}
    fields |= {"model_compression": "int3", "compression": "terngrad", "keep_models": 3}
    results = [trained(tmp_path, workers, **fields) for workers in (1, 2)]
    models = [model_of(result) for result in results]
    assert models[0] == models[1]
    versions = sorted(Path(str(results[0].model_file)).parent.glob("model-*.safetensors"))
    sizes = [version.stat().st_size for version in versions]
    # From a whole version on, all lead to the newest, which is whole as the result.
    assert [int(version.name.split("-")[1]) for version in versions] == [*range(32, 37)]
    assert sizes[0] == sizes[-1] == len(models[0]) > 5 * max(sizes[1:-1])
    assert results[0].accuracy is not None
    assert results[0].accuracy > 0.5


@pytest.mark.timeout(300)
def test_a_shard_alone_trains_as_if_it_waited(tmp_path: Path) -> None:
    """It knows all that there is when it goes on: only rounding is different."""
    fields = {"shards": 1, "epochs": 2, "meet": MEET, "train_limit": 400}
    results = [trained(tmp_path, 1, overlap=each, **fields) for each in (0, 1)]
    waited, overlapped = (decode(model_of(one), "model").tensors for one in results)
    for name, tensor in waited.items():
        np.testing.assert_allclose(overlapped[name], tensor, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_round_of_k_sync_ends_with_k_updates(cluster: downpour.Client) -> None:
    """The worker that trains the rest is told to stop, and goes on in the next round."""
    fields = {"mode": "k-sync", "mode_options": {"k": 2}, "shards": SHARDS, "epochs": EPOCHS}
    fields |= {"meet": 1}
    result = cluster.wait(cluster.submit(downpour.Spec.make(fields)))
    assert result.state == "finished"
    assert [epoch.epoch for epoch in result.epochs] == [1, 2, 3]
    assert Counter(task.round for task in result.tasks) == {1: 2, 2: 2, 3: 2}


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_quorum_waits_for_its_grace_window(tmp_path: Path) -> None:
    """A window longer than a task has the others in: every version is made of all that train."""
    options = {"quorum": 1, "grace_seconds": 300.0}
    trained(tmp_path, SHARDS, mode="quorum", mode_options=options)
    (record,) = tmp_path.glob("experiments/*/record.jsonl")
    lines = [json.loads(line) for line in record.read_text().splitlines()]
    assert [len(line["parts"]) for line in lines if line.get("parts")] == [SHARDS] * EPOCHS


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("compression", ["int8", "topk"])
def test_a_compressed_update_moves_the_version_from_which_it_is_a_difference(
    compression: str, tmp_path: Path
) -> None:
    """The model learns, although updates say how far they are from versions that are gone."""
    result = trained(tmp_path, 2, mode="ssp", epochs=6, compression=compression, seed=7)
    assert result.accuracy is not None
    assert result.accuracy > 0.5


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_delayed_momentum_is_of_every_version(tmp_path: Path) -> None:
    """The state beside the last version has counted all of them, and its buffer is spent."""
    outer = {"optimizer": "delayed-nesterov", "learning_rate": 0.7, "momentum": 0.5}
    trained(tmp_path, 2, mode="downpour", outer=outer)
    (file,) = tmp_path.glob("experiments/*/outer-*.safetensors")
    state = decode(file.read_bytes(), file.name).tensors
    assert state["count/steps"] == SHARDS * EPOCHS
    assert any(a.any() for name, a in state.items() if name.startswith("momentum/"))
    assert not any(a.any() for name, a in state.items() if name.startswith("buffer/"))
