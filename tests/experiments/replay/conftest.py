"""A real manager, and workers in this process that train for real."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from downpour.cluster.manager.process import start_manager
from downpour.cluster.options import ManagerOptions
from downpour.cluster.worker.attempt import TaskControl
from downpour.cluster.worker.task_runner import TaskRunner
from downpour.files.store import SharedDirectory
from downpour.network.rpc import ManagerClient, parse_address
from downpour.network.rpc.messages import TaskMessage
from tests.cli.conftest import downpour as command
from tests.cli.conftest import own_signals
from tests.cluster.manager.conftest import Cluster, FakeWorker
from tests.specs import plain_spec

__all__ = ["command", "own_signals"]

SMALL = plain_spec(shards=3, epochs=2, train_limit=96, test_limit=16, batch_size=16, meet=1)
Trained = Callable[..., str]


def train(worker: FakeWorker, task: TaskMessage) -> None:
    """Do what a worker does."""
    update = TaskRunner(worker.shared, "cpu").run(task, TaskControl(task.id))
    worker.client.report_update(worker.name, task.id, update)


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One shared directory for all."""
    return tmp_path_factory.mktemp("shared")


@pytest.fixture(scope="session")
def trained(shared: Path) -> Iterator[Trained]:
    """Train a spec's variant and return the experiment's ID; each once."""
    # Its workers send no heartbeats, and must not be given up meanwhile.
    manager = start_manager(ManagerOptions(shared=str(shared), port=0, patience=100.0))
    client = ManagerClient(parse_address(str(manager.address)))
    cluster = Cluster(manager, client, SharedDirectory.open(shared, create=False))
    for name in ("ada", "bob"):
        cluster.join(name, train)
    known: dict[str, str] = {}

    def run(**changes: Any) -> str:
        asked = repr(sorted(changes.items()))
        if asked not in known:
            experiment = cluster.submit(SMALL, **changes)
            end = cluster.end_of(experiment).experiment
            assert end is not None
            assert end.state == "finished", end.reason
            known[asked] = experiment
        return known[asked]

    yield run
    for worker in cluster.workers:
        worker.close()
    client.close()
    manager.close()
