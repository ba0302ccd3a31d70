"""A real worker agent with a fake manager, which answers real calls and remembers them."""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from queue import SimpleQueue

import numpy as np
import pytest

from downpour.base import VERSION
from downpour.base.errors import Refused
from downpour.base.states import FailureKind
from downpour.base.values import AttemptId, Snapshot, Update
from downpour.cluster.worker.attempt import TaskControl
from downpour.cluster.worker.task_runner import TaskRunner
from downpour.core.resolve import resolve
from downpour.core.spec import Spec
from downpour.files.store import SharedDirectory, encode
from downpour.learning import datasets, models
from downpour.learning.training.parameters import parameters_of
from downpour.network.rpc import PROTOCOL, ManagerClient, parse_address, serve_manager
from downpour.network.rpc.messages import (
    BlockDigest,
    ExperimentSummary,
    Heartbeat,
    HeartbeatReply,
    ManagerInfo,
    RecordPage,
    Registered,
    Registration,
    Status,
    TaskMessage,
)
from downpour.network.rpc.server import Server

Report = tuple[AttemptId, Update | Snapshot | tuple[FailureKind, str]]


@dataclass
class FakeManager:
    """Remembers what a worker says, in queues that a test can wait on."""

    presence_file: str
    protocol: int = PROTOCOL
    term: int = 0
    known: bool = True
    unwanted: tuple[AttemptId, ...] = ()
    refusals: int = 0
    heartbeat_seconds: float = 0.02
    registrations: SimpleQueue[Registration] = field(default_factory=SimpleQueue)
    reports: SimpleQueue[Report] = field(default_factory=SimpleQueue)
    beats: SimpleQueue[Heartbeat] = field(default_factory=SimpleQueue)
    blocks: list[str] = field(default_factory=list)
    goodbyes: SimpleQueue[str] = field(default_factory=SimpleQueue)

    def describe(self) -> ManagerInfo:
        return ManagerInfo(
            protocol=self.protocol,
            version=VERSION,
            presence_file=self.presence_file,
            heartbeat_seconds=self.heartbeat_seconds,
            term=self.term,
        )

    def register_worker(self, registration: Registration) -> Registered:
        self.registrations.put(registration)
        self.known = True
        return Registered(worker=f"{registration.name}-taken")

    def heartbeat(self, heartbeat: Heartbeat) -> HeartbeatReply:
        """Answer as the test has set."""
        self.beats.put(heartbeat)
        return HeartbeatReply(known=self.known, unwanted=self.unwanted)

    def report_update(self, worker: str, attempt: AttemptId, update: Update) -> None:
        del worker
        if self.refusals:
            self.refusals -= 1
            raise Refused("manager", "is stopping", busy=True)
        self.reports.put((attempt, update))

    def report_failure(
        self, worker: str, attempt: AttemptId, kind: FailureKind, reason: str
    ) -> None:
        del worker
        self.reports.put((attempt, (kind, reason)))

    def report_hand_over(self, worker: str, attempt: AttemptId, snapshot: Snapshot) -> None:
        del worker
        self.reports.put((attempt, snapshot))

    def report_blocks(
        self, worker: str, experiment: str, blocks: tuple[BlockDigest, ...]
    ) -> tuple[str, ...]:
        """Remember them; those whose names begin with "other" are different elsewhere."""
        del worker
        assert experiment == "any"
        self.blocks += [one.block for one in blocks]
        return tuple(one.block for one in blocks if one.block.startswith("other"))

    def leave(self, worker: str, reason: str) -> None:
        del reason
        self.goodbyes.put(worker)

    def submit(self, spec: str, request: str, *_: object) -> str:
        """No worker asks for this."""
        raise Refused(request, spec)

    def status(self, experiment: str, after_change: int, wait_seconds: float) -> Status:
        """No worker asks for this."""
        raise Refused("experiment", f"{experiment} {after_change} {wait_seconds}")

    def list_experiments(self, before: str, limit: int) -> tuple[ExperimentSummary, ...]:
        """No worker asks for this."""
        del before, limit
        return ()

    def cancel(self, experiment: str) -> None:
        """No worker asks for this."""
        raise Refused("experiment", experiment)

    def pause(self, experiment: str, paused: bool | None, priority: int | None) -> None:  # noqa: FBT001
        """No worker asks for this."""
        raise Refused("experiment", experiment, value=f"{paused}, {priority}")

    def disturbed(self, experiment: str, who: str, what: str) -> None:
        """Keep nothing."""

    def results(self, experiment: str, from_line: int, wait_seconds: float) -> RecordPage:
        """No worker asks for this."""
        raise Refused("experiment", f"{experiment} {from_line} {wait_seconds}")


@dataclass
class Desk:
    """A fake manager that serves, and what a worker needs to reach it."""

    manager: FakeManager
    server: Server
    client: ManagerClient
    shared: SharedDirectory
    digests: dict[str, str] = field(default_factory=dict)
    """The blocks that the worker has read."""


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    """A fake manager at a port of its own, with a shared directory."""
    shared = SharedDirectory.open(tmp_path / "shared", create=True)
    manager = FakeManager(shared.announce("a secret").name)
    server = serve_manager(manager, "127.0.0.1", 0).start()
    client = ManagerClient(parse_address(str(server.address)))
    yield Desk(manager, server, client, shared)
    client.close()
    server.stop()


@dataclass(frozen=True)
class Trainable:
    """A task that can be run, in a shared directory as a manager leaves it."""

    shared: SharedDirectory
    task: TaskMessage


@pytest.fixture(scope="module")
def trainable(tmp_path_factory: pytest.TempPathFactory) -> Trainable:
    """The first task of shard 0, of which every step is saved."""
    root = tmp_path_factory.mktemp("shared")
    shared = replace(SharedDirectory.open(root, create=True), patience_seconds=0.1)
    asked = Spec(shards=2, epochs=2, batch_size=16, optimizer_state="keep", snapshot_every=1e-9)
    spec = resolve(asked.replace(device="cpu"), None)
    key = datasets.prepare(spec, shared.datasets)
    facts = datasets.open_prepared(shared.datasets, key).facts
    store = shared.create_experiment("any")
    task = TaskMessage(
        id=AttemptId(experiment="any", round=0, shard=0, attempt=0),
        spec=store.put_new("spec.toml", [spec.to_toml().encode()]),
        dataset=key,
        model=store.put_new("model-0", encode(parameters_of(models.build(spec, facts)), {})),
        indices=np.arange(100),
    )
    return Trainable(shared, task)


@pytest.fixture(scope="module")
def whole(trainable: Trainable) -> Update:
    """The update of a worker that trains the task from its beginning to its end."""
    task = trainable.task
    return TaskRunner(trainable.shared, "cpu").run(task, TaskControl(task.id))
