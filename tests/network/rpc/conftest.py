"""A manager that lives in memory, served for real over the loopback interface."""

import socket
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Event, Thread
from typing import Any

import pytest

from downpour.base.errors import Refused, SpecError
from downpour.base.states import ExperimentState, FailureKind
from downpour.base.values import (
    AttemptId,
    ProcessState,
    Progress,
    PublishedFile,
    Snapshot,
    SystemState,
    Update,
)
from downpour.network.rpc import PROTOCOL, Address, ManagerClient, Trust, serve_manager
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
)
from downpour.network.rpc.server import Limits, Server

PATIENCE_SECONDS = 20.0


@dataclass
class Gate:
    """Holds a call at its start until the test releases it."""

    entered: Event = field(default_factory=Event)
    release: Event = field(default_factory=Event)

    def __call__(self, _method: str) -> None:
        """Tell that a call has begun, and wait."""
        self.entered.set()
        self.release.wait(PATIENCE_SECONDS)


@dataclass
class FakeManager:
    """Remembers what it is told; `before` is run at the start of each call, and may raise."""

    before: Callable[[str], object] = lambda _: None
    workers: list[str] = field(default_factory=list)
    specs: dict[str, str] = field(default_factory=dict)
    updates: dict[AttemptId, Update] = field(default_factory=dict)
    failures: dict[AttemptId, tuple[FailureKind, str]] = field(default_factory=dict)
    snapshots: dict[AttemptId, Snapshot] = field(default_factory=dict)
    cancelled: set[str] = field(default_factory=set)
    disturbances: list[tuple[str, str, str]] = field(default_factory=list)

    def describe(self) -> ManagerInfo:
        self.before("describe")
        return ManagerInfo(
            protocol=PROTOCOL, version="0", presence_file="here", heartbeat_seconds=1.0
        )

    def register_worker(self, registration: Registration) -> Registered:
        self.before("registerWorker")
        self.workers.append(registration.name)
        return Registered(worker=registration.name)

    def heartbeat(self, heartbeat: Heartbeat) -> HeartbeatReply:
        self.before("heartbeat")
        unwanted = tuple(progress.attempt for progress in heartbeat.running)
        return HeartbeatReply(known=heartbeat.worker in self.workers, unwanted=unwanted)

    def report_update(self, worker: str, attempt: AttemptId, update: Update) -> None:
        """Keep it, if its worker is known."""
        self.before("report_update")
        if worker not in self.workers:
            raise Refused("worker", f"no worker is called {worker}")
        self.updates[attempt] = update

    def report_failure(
        self, worker: str, attempt: AttemptId, kind: FailureKind, reason: str
    ) -> None:
        self.before("report_failure")
        self.failures[attempt] = (kind, f"{worker}: {reason}")

    def report_hand_over(self, worker: str, attempt: AttemptId, snapshot: Snapshot) -> None:
        """Keep it, if its worker is known."""
        self.before("report_hand_over")
        if worker not in self.workers:
            raise Refused("worker", f"no worker is called {worker}")
        self.snapshots[attempt] = snapshot

    def report_blocks(
        self, worker: str, experiment: str, blocks: tuple[BlockDigest, ...]
    ) -> tuple[str, ...]:
        self.before("report_blocks")
        return tuple(f"{experiment}, {one.block} of {worker}" for one in blocks)

    def leave(self, worker: str, reason: str) -> None:
        self.before(f"leave: {reason}")
        self.workers.remove(worker)

    def submit(self, spec: str, request: str, *_: object) -> str:
        """An identifier that shows which spec it answers."""
        del request
        self.before("submit")
        if "nonsense" in spec:
            raise SpecError("split", "nonsense", "random, class, equal or dirichlet(ALPHA)")
        self.specs[f"experiment-{spec}"] = spec
        return f"experiment-{spec}"

    def status(self, experiment: str, after_change: int, wait_seconds: float) -> Status:
        """A status that repeats what was asked."""
        self.before(f"status, waiting {wait_seconds:g} s")
        summary = self._summary(experiment) if experiment else None
        return Status(change=after_change + 1, experiment=summary)

    def list_experiments(self, before: str, limit: int) -> tuple[ExperimentSummary, ...]:
        self.before(f"list_experiments before {before!r}")
        known = list(self.specs)
        earlier = known[: known.index(before)] if before else known
        return tuple(map(self._summary, earlier[-limit:]))

    def cancel(self, experiment: str) -> None:
        self.before("cancel")
        self.cancelled.add(self._summary(experiment).experiment)

    def pause(self, experiment: str, paused: bool | None, priority: int | None) -> None:  # noqa: FBT001
        self.before("pause")
        del experiment, paused, priority

    def disturbed(self, experiment: str, who: str, what: str) -> None:
        self.before("disturbed")
        self.disturbances.append((self._summary(experiment).experiment, who, what))

    def results(self, experiment: str, from_line: int, wait_seconds: float) -> RecordPage:
        self.before(f"results, waiting {wait_seconds:g} s")
        summary = self._summary(experiment)
        return RecordPage(lines=("{}",), next_line=from_line + 1, experiment=summary)

    def _summary(self, experiment: str) -> ExperimentSummary:
        if experiment not in self.specs:
            reason = f"no experiment is called {experiment}"
            raise Refused("experiment", reason, value=experiment)
        return ExperimentSummary(
            experiment=experiment,
            name=self.specs[experiment],
            state=ExperimentState.RUNNING,
            rounds_done=1,
            rounds_total=5,
        )


@dataclass
class Served:
    """A fake manager, its server, and the means to reach it."""

    service: FakeManager
    server: Server

    def client(self, **options: Any) -> ManagerClient:
        return ManagerClient(self.server.address, **options)

    def raw(self) -> socket.socket:
        """A bare connection, for those who mean no good."""
        address = (self.server.address.host, self.server.address.port)
        return socket.create_connection(address, timeout=20)

    def assert_well(self) -> None:
        with self.client() as client:
            assert client.submit("well") == "experiment-well"


Serve = Callable[[Limits], Served]


@contextmanager
def guarded(trust: Trust, limits: Limits | None = None) -> Iterator[Served]:
    """Serve a manager that demands credentials, over real sockets."""
    service = FakeManager()
    with serve_manager(service, "127.0.0.1", 0, limits, trust) as server:
        yield Served(service, server)


def called(address: Address, trust: Trust) -> str:
    """Call a manager once; returns its version."""
    with ManagerClient(address, trust=trust) as client:
        return client.describe().version


Change = Callable[[bytes], Iterable[bytes]]


def unchanged(data: bytes) -> Iterable[bytes]:
    """Pass bytes on as they are."""
    return [data]


@contextmanager
def go_between(
    server: Address, *, there: Change = unchanged, back: Change = unchanged
) -> Iterator[Address]:
    """Give the address of an attacker between caller and server, who changes their bytes."""
    listener = socket.create_server(("127.0.0.1", 0))

    def pump(source: socket.socket, sink: socket.socket, change: Change) -> None:
        try:
            while data := source.recv(65536):
                for piece in change(data):
                    sink.sendall(piece)
            sink.shutdown(socket.SHUT_WR)
        except OSError:
            source.close()

    def serve() -> None:
        caller, _ = listener.accept()
        with caller, socket.create_connection((server.host, server.port)) as onward:
            answers = Thread(target=pump, args=(onward, caller, back))
            answers.start()
            pump(caller, onward, there)
            answers.join(PATIENCE_SECONDS)

    thread = Thread(target=serve)
    thread.start()
    yield Address(*listener.getsockname())
    listener.close()
    thread.join(PATIENCE_SECONDS)


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Starts managers with limits of the test's choice, and stops them in the end."""
    servers = []

    def start(limits: Limits) -> Served:
        service = FakeManager()
        server = serve_manager(service, "127.0.0.1", 0, limits).start()
        servers.append(server)
        return Served(service, server)

    yield start
    for server in servers:
        server.stop()


@pytest.fixture
def fake() -> FakeManager:
    """A manager that nobody serves yet."""
    return FakeManager()


@pytest.fixture
def manager(serve: Serve) -> Served:
    """A manager with the limits that users get."""
    return serve(Limits())


@pytest.fixture
def attempt() -> AttemptId:
    """Some attempt."""
    return AttemptId(experiment="digits-1", round=2, shard=3, attempt=0)


@pytest.fixture
def file() -> PublishedFile:
    """Some published file."""
    return PublishedFile(name="update.safetensors", size_bytes=7, checksum="0" * 32)


@pytest.fixture
def update(file: PublishedFile) -> Update:
    """Some update."""
    return Update(
        file=file,
        samples=10,
        steps=2,
        loss=0.5,
        load_seconds=0.1,
        train_seconds=0.2,
        publish_seconds=0.3,
        processes=2,
        shortages=1,
    )


@pytest.fixture
def heartbeat(attempt: AttemptId) -> Heartbeat:
    """A worker that is at half of its task."""
    progress = Progress(attempt=attempt, steps_done=1, steps_total=2, elapsed_seconds=1.5)
    system = SystemState(cpu_others=0.1, load_average=1.0, memory_used=0.5, io_wait=0.0)
    process = ProcessState(cpu_share=1.9, memory_bytes=2**33, threads=7)
    return Heartbeat(worker="w1", running=(progress,), system=system, process=process)
