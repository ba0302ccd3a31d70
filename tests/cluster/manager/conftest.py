"""A real manager with fake workers: they answer real calls, but train nothing."""

import json
import secrets
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from queue import SimpleQueue
from threading import Thread
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from downpour.base import VERSION
from downpour.base.errors import DownpourError
from downpour.base.states import ExperimentState
from downpour.base.values import AttemptId, NumericClass, PublishedFile, SystemState, Update
from downpour.cluster.manager.process import Manager, start_manager
from downpour.cluster.options import ManagerOptions
from downpour.core.scheduler import events as on
from downpour.core.spec import ResolvedSpec, Spec
from downpour.files.store import SharedDirectory, encode, layout
from downpour.files.store.layout import attempt_name
from downpour.files.store.model_files import read_version
from downpour.learning.training.epoch_order import part_of
from downpour.network.rpc import PROTOCOL, ManagerClient, serve_worker
from downpour.network.rpc.messages import (
    Heartbeat,
    IndicesFile,
    Registration,
    Status,
    TaskMessage,
    WorkerInfo,
)
from tests.specs import plain_spec, plain_update

Arrays = dict[str, npt.NDArray[Any]]
Train = Callable[["FakeWorker", TaskMessage], None]

NUMERICS = NumericClass(torch="2", device="cpu", instruction_set="x86_64")
CALM = SystemState(cpu_others=0.0, load_average=0.0, memory_used=0.1, io_wait=0.0)
SMALL = plain_spec(name="small", shards=2, epochs=2, batch_size=32, keep_models=3)


@dataclass
class FakeWorker:
    """Answers the manager's calls; what a task comes to is up to `train`."""

    client: ManagerClient
    shared: SharedDirectory
    name: str
    behave: Train
    tasks: list[TaskMessage] = field(default_factory=list)
    reported: set[AttemptId] = field(default_factory=set)
    cancelled: SimpleQueue[AttemptId] = field(default_factory=SimpleQueue)
    inbox: SimpleQueue[TaskMessage | None] = field(default_factory=SimpleQueue)

    def __post_init__(self) -> None:
        """Serve, and register with the manager."""
        self.server = serve_worker(self, "127.0.0.1", 0).start()
        self.thread = Thread(target=self._work, daemon=True)
        self.thread.start()
        info = self.client.describe()
        self.registration = Registration(
            name=self.name,
            host="127.0.0.1",
            port=self.server.address.port,
            protocol=PROTOCOL,
            version=VERSION,
            presence=self.shared.read_presence(info.presence_file),
            numeric_class=NUMERICS,
            hostname="here",
            pid=id(self) % 2**31,
        )
        self.name = self.client.register_worker(self.registration).worker

    def ping(self) -> WorkerInfo:
        return WorkerInfo(protocol=PROTOCOL, version=VERSION, name=self.name)

    def train(self, task: TaskMessage) -> None:
        self.tasks.append(task)
        self.inbox.put(task)

    def cancel(self, attempt: AttemptId) -> None:
        self.cancelled.put(attempt)

    def hand_over(self, attempt: AttemptId) -> None:
        del attempt

    def drain(self) -> None:
        """Do nothing; a fake does not leave by itself."""

    def parameters(self, task: TaskMessage) -> Arrays:
        store = self.shared.store(task.id.experiment)
        return dict(read_version(store, task.model, task.leading, lambda _: None).tensors)

    def publish(self, task: TaskMessage, arrays: Arrays) -> PublishedFile:
        number = task.id
        name = attempt_name("update", number, secrets.token_hex(3))
        return self.shared.store(number.experiment).put_new(name, encode(arrays, {}))

    def report(self, task: TaskMessage, file: PublishedFile, loss: float = 1.0) -> None:
        self.client.report_update(self.name, task.id, self.update(task, file, loss))
        self.reported.add(task.id)

    def beat(self) -> None:
        """Send a heartbeat if it is idle; what is told of an attempt is up to the test."""
        if all(task.id in self.reported for task in self.tasks):
            self.client.heartbeat(Heartbeat(worker=self.name, running=(), system=CALM))

    def update(self, task: TaskMessage, file: PublishedFile, loss: float = 1.0) -> Update:
        """Say of a file what is true of a task's update."""
        store = self.shared.store(task.id.experiment)
        spec = ResolvedSpec.from_toml(bytes(store.read(task.spec)).decode())
        part = part_of(spec, _count(task), task.id.round)
        return plain_update(file, samples=part.samples, steps=part.steps, loss=loss)

    def close(self) -> None:
        self.inbox.put(None)
        self.thread.join()
        self.server.stop()

    def _work(self) -> None:
        while (task := self.inbox.get()) is not None:
            with suppress(DownpourError):  # the manager may end before a next experiment does
                self.behave(self, task)


def _count(task: TaskMessage) -> int:
    return task.indices.count if isinstance(task.indices, IndicesFile) else len(task.indices)


def diligent(worker: FakeWorker, task: TaskMessage) -> None:
    """Add the shard's number plus one to every parameter, and report that."""
    arrays = {
        name: array + np.asarray(task.id.shard + 1, dtype=array.dtype)
        for name, array in worker.parameters(task).items()
    }
    worker.report(task, worker.publish(task, arrays))


@dataclass
class Cluster:
    """A manager, a client of it, and whoever joins."""

    manager: Manager
    client: ManagerClient
    shared: SharedDirectory
    workers: list[FakeWorker] = field(default_factory=list)

    def join(self, name: str, behave: Train = diligent) -> FakeWorker:
        worker = FakeWorker(self.client, self.shared, name, behave)
        self.workers.append(worker)
        return worker

    def submit(self, spec: Spec = SMALL, **changes: Any) -> str:
        return self.client.submit(Spec.make({**spec.model_dump(), **changes}).to_toml())

    def status_when(self, holds: Callable[[Status], bool], experiment: str = "") -> Status:
        """Wait for the status to satisfy a condition; idle workers are not silent meanwhile."""
        change = 0
        for _ in range(1000):
            for worker in self.workers:
                worker.beat()
            status = self.client.status(experiment, change, 5.0)
            change = status.change
            if holds(status):
                return status
        raise AssertionError(f"never happened; last seen: {status}")

    def end_of(self, experiment: str) -> Status:
        return self.status_when(
            lambda s: s.experiment is not None and s.experiment.state.ended, experiment
        )

    def record(self, experiment: str) -> list[str]:
        return list(self.client.results(experiment, 0, 0.0).lines)

    def facts(self, experiment: str, kind: str) -> list[dict[str, Any]]:
        """Return what an experiment's record tells of a kind."""
        told = map(json.loads, self.record(experiment))
        return [fact for fact in told if fact["kind"] == kind]

    def refusal_of(self, experiment: str) -> str:
        """Wait until an experiment has failed by its user's fault; returns the reason."""
        summary = self.end_of(experiment).experiment
        assert summary is not None
        assert summary.state is ExperimentState.FAILED
        assert summary.asked_wrongly
        assert summary.reason is not None
        return summary.reason

    def result_of(self, experiment: str) -> bytes:
        """Wait until an experiment has finished; returns its model."""
        state = self.end_of(experiment).experiment
        assert state is not None
        assert state.state is ExperimentState.FINISHED, state.reason
        return (self.shared.experiment_path(experiment) / layout.FINAL_NAME).read_bytes()

    def close(self) -> None:
        """End the manager, whatever goes on, and those who work for it."""
        self.manager.close()
        for worker in self.workers:
            worker.close()
        self.client.close()


def started(options: ManagerOptions) -> Cluster:
    """Start a manager."""
    manager = start_manager(options)
    shared = SharedDirectory.open(Path(options.shared), create=False)
    return Cluster(manager, ManagerClient(manager.address), shared)


def started_in(folder: Path, **changes: Any) -> Cluster:
    """Start a manager in a folder, perhaps not its first."""
    return started(replace(options_of(folder), **changes))


def options_of(shared: Path) -> ManagerOptions:
    """Start a manager so that it waits little for files, and long for workers."""
    # Fakes that train send no heartbeats, and a test may take long on a busy machine. Retries wait
    # longer, too, so not more than needed.
    return ManagerOptions(
        shared=str(shared), port=0, heartbeat_seconds=0.05, patience_seconds=0.1, patience=2.0
    )


@pytest.fixture
def options(tmp_path: Path) -> ManagerOptions:
    """How the manager of `cluster` is started."""
    return options_of(tmp_path)


@pytest.fixture
def cluster(options: ManagerOptions) -> Iterator[Cluster]:
    """A manager without workers, on a port of its own."""
    made = started(options)
    yield made
    for worker in made.workers:  # first, so that somebody answers what they report
        worker.close()
    made.close()


Start = Callable[..., Cluster]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts managers in one folder, one after the other; all end with the test."""
    made: list[Cluster] = []

    def start(**changes: Any) -> Cluster:
        made.append(started_in(tmp_path / "shared", **changes))
        return made[-1]

    yield start
    for cluster in made:
        cluster.close()


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The model that comes of the small spec when nothing happens."""
    cluster = started_in(tmp_path_factory.mktemp("undisturbed"))
    cluster.join("one")
    model = cluster.result_of(cluster.submit())
    cluster.close()
    return model


class Queue:
    """Takes the events of a command runner; its time stands still."""

    now_seconds = 0.0

    def __init__(self, events: SimpleQueue[on.Event]) -> None:
        self.post = events.put

    def fail(self, experiment: str, reason: str) -> None:
        """Post that an experiment has failed."""
        self.post(on.EffectFailed(at_seconds=0.0, experiment=experiment, reason=reason))
