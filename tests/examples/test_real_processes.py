"""The tasks that ship, trained by real processes: no matter how many, nor what becomes of them."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import pytest

from downpour import Client, Spec
from downpour.api import embed
from downpour.reports import Result
from downpour.rpc.messages import Status
from tests.chaos.stage import Process
from tests.chaos.test_hand_over import Cluster, mostly_stopped
from tests.examples.conftest import examples_here

FEW = {"shards": 7, "epochs": 1, "local_steps": 2}


def model_of(result: Result) -> bytes:
    """Return the bytes of a finished experiment's model."""
    assert result.model_file is not None
    return result.model_file.read_bytes()


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_one_three_and_seven_workers_make_the_same_models(
    small_mnist: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same shards make the same bytes of each example, whichever worker trains which."""
    examples = examples_here(monkeypatch, small_mnist)
    models: dict[str, set[bytes]] = {example.name: set() for example in examples}
    for workers in (1, 3, 7):
        with embed(examples[0].small, workers, shared=tmp_path / str(workers)) as (_, client):
            asked = [client.submit(one.small.replace(**FEW)) for one in examples]
            for example, experiment in zip(examples, asked, strict=True):
                models[example.name].add(model_of(client.wait(experiment)))
    assert {name: len(different) for name, different in models.items()} == dict.fromkeys(models, 1)


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_a_killed_worker_and_a_shard_handed_over_change_nothing(
    small_mnist: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Dropout, the schedule and the optimizer's state go along."""
    example = examples_here(monkeypatch, small_mnist)[0]
    # Steps of some tens of milliseconds, and enough of them that it pays to move a shard.
    spec = example.small.replace(shards=2, batch_size=4, local_steps=60, policy="wait", epochs=2)
    with ExitStack() as stack:
        cluster = Cluster(tmp_path, stack)
        waited = cluster.run(spec)
        with mostly_stopped(cluster.workers[0].popen.pid):
            moved = cluster.run(spec.replace(policy="handoff"))
        killed = run_and_kill(cluster, cluster.workers[0], spec)
    assert moved.stragglers is not None
    assert moved.stragglers.moves > 0
    assert killed.worker_changes
    assert model_of(moved) == model_of(waited)
    assert model_of(killed) == model_of(waited)


def run_and_kill(cluster: Cluster, worker: Process, spec: Spec) -> Result:
    """Run an experiment, in which a worker dies once it has trained some steps."""

    def look(status: Status) -> None:
        at_work = any(task.steps_done > 1 for task in status.tasks)
        if at_work and worker.popen.poll() is None:
            worker.kill()

    with Client(cluster.address, shared=cluster.shared) as client:
        return client.wait(client.submit(spec), on_status=look)
