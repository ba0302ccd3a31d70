"""What it costs to know what workers use: processor time added, over that of the tasks.

A manager and a worker, both in this process, train on random pictures for about `--seconds`. Added
up is the processor time of what would not happen without samples: the worker's look at its process
with each heartbeat, and the manager's gathering and telling of what it has heard. What a message
takes more to write and read is measured apart, and counted once a heartbeat.

`share` is all that over the processor time of the tasks (limit: 0.01). `look_us`, `message_us` and
`keep_us` are its parts for one sample, `record_bytes` what one adds to the record.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from threading import Thread

import numpy as np
from common import Row, command_line, show
from safety import Meter, metered

import downpour
from downpour.base.values import NumericClass, ProcessState, SystemState
from downpour.cluster.manager.observations import Usage
from downpour.cluster.manager.process import start_manager
from downpour.cluster.options import ManagerOptions
from downpour.cluster.worker.agent import WorkerAgent
from downpour.cluster.worker.task_runner import TaskRunner
from downpour.files.store import SharedDirectory
from downpour.host.machine import SystemSampler
from downpour.network.rpc import ManagerClient, serve_worker
from downpour.network.rpc.messages import Heartbeat
from downpour.network.rpc.wire import from_wire, to_wire
from downpour.record.record import read_record
from downpour.record.record_lines import RecordLine, ResourcesUsedLine
from downpour.record.view import to_fields

LIMIT = 0.01
NUMERICS = NumericClass(torch="any", device="cpu", instruction_set="any")
BEAT = Heartbeat(
    worker="worker-1",
    running=(),
    system=SystemState(cpu_others=0.1, load_average=1.0, memory_used=0.1, io_wait=0.0),
    process=ProcessState(cpu_share=0.998, memory_bytes=812_345_344, threads=9),
)


def measure(seconds: float, folder: Path) -> Row:
    """Train in a folder for about so long; returns what the samples of it cost."""
    looks, keeps, tasks = Meter(), Meter(), Meter()
    with (
        metered(looks, SystemSampler, "sample"),
        metered(keeps, Usage, "hear", "end", "end_all"),
        metered(tasks, TaskRunner, "run"),
    ):
        story = trained(spec(seconds, folder), folder)
    told = [fact for _, fact in story if isinstance(fact, ResourcesUsedLine)]
    count = sum(len(fact.samples) for fact in told)
    message = message_seconds(BEAT) - message_seconds(replace(BEAT, process=None))
    return {
        "samples": count,
        "tasks_cpu_seconds": tasks.seconds,
        "look_us": 1e6 * looks.seconds / count,
        "message_us": 1e6 * message,
        "keep_us": 1e6 * keeps.seconds / count,
        "record_bytes": sum(len(json.dumps(to_fields(fact))) for fact in told) / count,
        "share": (looks.seconds + keeps.seconds + count * message) / tasks.seconds,
        "limit": LIMIT,
    }


def trained(spec: downpour.Spec, folder: Path) -> list[tuple[float, RecordLine]]:
    """Run an experiment with one worker; returns its record."""
    with manager_and_worker(folder) as address, downpour.Client(address) as client:
        experiment = client.submit(spec)
        client.wait(experiment)
        return read_record(SharedDirectory(folder).experiment_path(experiment) / "record.jsonl")


@contextmanager
def manager_and_worker(folder: Path) -> Iterator[str]:
    """Run both in threads of this process; yields where the manager answers."""
    manager = start_manager(ManagerOptions(shared=str(folder), port=0))
    shared = SharedDirectory.open(folder, create=False)
    client = ManagerClient(manager.address)
    agent = WorkerAgent(client, shared, "worker-1", NUMERICS, TaskRunner(shared, "cpu").run)
    server = serve_worker(agent, "127.0.0.1", 0).start()
    try:
        agent.register(server.address.host, server.address.port)
        working = Thread(target=agent.run)
        working.start()
        yield str(manager.address)
        agent.leave()
        working.join()
    finally:
        server.stop()
        client.close()
        manager.close()


def spec(seconds: float, folder: Path) -> downpour.Spec:
    """Make a spec that trains for about so long in a few attempts, and its data."""
    count = 3000
    pixels = np.random.default_rng(0).integers(0, 256, (count, 28, 28), dtype=np.uint8)
    data, labels = folder / "noise.npz", np.arange(count) % 10
    np.savez(data, x=pixels, y=labels, x_test=pixels[:10], y_test=labels[:10])
    return downpour.Spec(
        name="sampling",
        dataset="npz",
        data_path=str(data),
        model="mnist-cnn",
        shards=1,
        epochs=max(1, round(seconds / 2)),
        learning_rate=0.001,
        evaluate_every=0,
    )


def message_seconds(beat: Heartbeat, times: int = 20_000) -> float:
    """Return the processor time of turning a heartbeat into its message and back."""
    began = time.thread_time()
    for _ in range(times):
        from_wire(Heartbeat, to_wire(beat))
    return (time.thread_time() - began) / times


def main() -> None:
    """Measure and print."""
    parser: argparse.ArgumentParser = command_line(__doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="about how long to train")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        row = measure(options.seconds, Path(folder))
    show([row], as_json=options.json)


if __name__ == "__main__":
    main()
