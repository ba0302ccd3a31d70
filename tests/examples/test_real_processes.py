"""The tasks that ship, trained by real processes: no matter how many, nor what becomes of them."""

from pathlib import Path
from typing import Any

import psutil
import pytest

from downpour import Client, Spec, run
from downpour.experiments.surroundings import Surroundings
from downpour.experiments.training import embed
from downpour.launchers import LocalCluster
from downpour.network.rpc.messages import Status
from downpour.record import Result
from tests.chaos.stage import Cluster, Process
from tests.chaos.test_hand_over import mostly_stopped
from tests.examples.conftest import Example, examples_here
from tests.specs import model_of

pytestmark = [
    pytest.mark.usefixtures("forked_clusters"),
    pytest.mark.filterwarnings("ignore::FutureWarning:transformers"),
]

FEW = {"shards": 7, "epochs": 1, "local_steps": 2}
MIDDLE: dict[str, Any] = {"shards": 2, "batch_size": 4, "local_steps": 40, "policy": "wait"}
LENGTHS: dict[str, dict[str, Any]] = {
    "diabetes": {"epochs": 40},  # a look takes a tenth of a second, its steps a millisecond each
    "resnet18": {"local_steps": 8},
    "shapes": {"epochs": 10},
    "vae": {"epochs": 10},
    "word_lstm": {"epochs": 10},
}


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_one_three_and_seven_workers_make_the_same_models(
    small_mnist: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same shards make the same bytes of each example, whichever worker trains which."""
    examples = examples_here(monkeypatch, small_mnist)
    models: dict[str, set[bytes]] = {example.name: set() for example in examples}
    for workers, on in ((1, "inline"), (3, "local"), (7, "inline")):
        surroundings = Surroundings(tmp_path / str(workers), on=on)
        with embed(examples[0].small, workers, surroundings) as (_, client):
            asked = [client.submit(one.small.replace(**FEW)) for one in examples]
            for example, experiment in zip(examples, asked, strict=True):
                models[example.name].add(model_of(client.wait(experiment)))
    assert {name: len(different) for name, different in models.items()} == dict.fromkeys(models, 1)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_killed_workers_and_shards_handed_over_change_no_example(
    small_mnist: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Dropout, schedule, buffers, augmentation and the optimizers' state go along, in each."""
    examples = examples_here(monkeypatch, small_mnist)
    specs = {
        one.name: one.small.replace(**(MIDDLE | LENGTHS.get(one.name, {}))) for one in examples
    }
    with embed(examples[0].small, 2, Surroundings(tmp_path)) as (cluster, client):
        asked = {name: client.submit(spec) for name, spec in specs.items()}
        waited = {name: model_of(client.wait(experiment)) for name, experiment in asked.items()}
        for name, spec in specs.items():
            killed = run_with_a_death(client, spec)
            assert killed.worker_changes, name
            assert model_of(killed) == waited[name], name
            assert isinstance(cluster, LocalCluster)
            cluster._add()
        moves = {}
        with mostly_stopped(newest().pid):
            for name, spec in specs.items():
                moved = client.wait(client.submit(spec.replace(policy="handoff")))
                moves[name] = moved.stragglers.moves if moved.stragglers else 0
                assert model_of(moved) == waited[name], name
    assert any(moves.values())  # of the shortest, a shard may be done before it pays to move it


@pytest.mark.slow
@pytest.mark.timeout(200)
def test_tasks_of_milliseconds_stay_where_they_are(
    small_mnist: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three workers import for seconds, and none is a straggler because another one is first."""
    examples_here(monkeypatch, small_mnist)
    spec = Example("diabetes").whole.replace(epochs=5)
    result = run(spec, workers=3, shared=tmp_path)
    assert result.stragglers is not None
    assert result.stragglers.extra_work is not None
    assert result.stragglers.extra_work < 0.5, [lost.reason for lost in result.failures]


def run_with_a_death(client: Client, spec: Spec) -> Result:
    """Run an experiment with two workers, one of which dies at a task."""
    next(status for status in client.watch("") if len(status.workers) > 1)
    experiment, killed = client.submit(spec), list[int]()

    def look(status: Status) -> None:
        at_work = [worker.pid for worker in status.workers if worker.running is not None]
        if at_work and not killed:
            killed.append(at_work[-1])
            psutil.Process(killed[0]).kill()

    result = client.wait(experiment, on_status=look)
    assert killed
    return result


def newest() -> psutil.Process:
    """Return the process that was started last: a worker, forked by the cluster."""
    return max(psutil.Process().children(recursive=True), key=lambda one: one.create_time())


def run_and_kill(cluster: Cluster, worker: Process, spec: Spec) -> Result:
    """Run an experiment, in which a worker dies once it has trained some steps."""

    def look(status: Status) -> None:
        at_work = any(task.steps_done > 1 for task in status.tasks)
        if at_work and worker.popen.poll() is None:
            worker.kill()

    with Client(cluster.address, shared=cluster.shared) as client:
        return client.wait(client.submit(spec), on_status=look)
