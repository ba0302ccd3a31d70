"""A real worker agent at work over real sockets; its manager is a fake, and it trains nothing."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from queue import SimpleQueue
from threading import Thread
from typing import Any

import numpy as np

from downpour.base.values import AttemptId, NumericClass, PublishedFile, Update
from downpour.cluster.worker.agent import ShownWorker, WorkerAgent
from downpour.cluster.worker.attempt import TaskCancelled, TaskControl
from downpour.network.rpc import ManagerClient, Server, WorkerClient, serve_worker
from downpour.network.rpc.messages import TaskMessage

PATIENCE_SECONDS = 10
_STEP_SECONDS = 0.002
DIFFERS = ("transformers 4.45, the manager 5.23",)
NUMERICS = NumericClass(torch="2", device="cpu", instruction_set="x86_64")
FILE = PublishedFile(name="some-file", size_bytes=1, checksum="0" * 32)
UPDATE = Update(
    file=FILE,
    samples=3,
    steps=1,
    loss=0.5,
    load_seconds=0.0,
    train_seconds=0.1,
    publish_seconds=0.0,
)


def task(round_number: int = 0) -> TaskMessage:
    """Make a task; nobody reads its files."""
    return TaskMessage(
        id=AttemptId(experiment="any", round=round_number, shard=0, attempt=0),
        spec=FILE,
        dataset="some-data",
        model=FILE,
        indices=np.arange(3),
    )


@dataclass
class Work:
    """What a task comes to: it says that it began, then does as the test has set."""

    began: SimpleQueue[TaskMessage]
    act: Callable[[TaskControl], Update]

    def __call__(self, given: TaskMessage, control: TaskControl) -> Update:
        """Carry a task out."""
        act = self.act  # before the test learns that the task began, and changes it
        self.began.put(given)
        return act(control)


@dataclass
class Office:
    """A worker agent at work, and the manager's way to call it.

    `looks` gets an entry each time that the agent looks for another manager.
    """

    agent: WorkerAgent
    server: Server
    client: WorkerClient
    work: Work
    thread: Thread
    looks: SimpleQueue[str]


@contextmanager
def at_work(desk: Any, alone_seconds: float = math.inf) -> Iterator[Office]:
    """Let a worker register whose tasks succeed at once."""
    work = Work(SimpleQueue(), lambda _: UPDATE)
    looks = SimpleQueue[str]()

    def look() -> ManagerClient | None:
        looks.put("elsewhere")
        return None

    agent = WorkerAgent(
        desk.client,
        desk.shared,
        "anna",
        NUMERICS,
        work,
        look,
        shown=ShownWorker(differs=lambda: DIFFERS),
    )
    server = serve_worker(agent, "127.0.0.1", 0).start()
    agent.register(server.address.host, server.address.port)
    thread = Thread(target=agent.run, kwargs={"alone_seconds": alone_seconds})
    thread.start()
    client = WorkerClient(server.address)
    try:
        yield Office(agent, server, client, work, thread, looks)
    finally:
        agent.leave()
        thread.join(PATIENCE_SECONDS)
        client.close()
        server.stop()
    assert not thread.is_alive()


def until_cancelled(control: TaskControl) -> Update:
    """Make short steps until it is cancelled."""
    latest = time.monotonic() + PATIENCE_SECONDS
    while not control.cancelled:
        assert time.monotonic() < latest
        time.sleep(_STEP_SECONDS)
    raise TaskCancelled
