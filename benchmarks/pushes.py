"""How many updates a second a manager makes versions of, against the disk's rate for their bytes.

The mode is `downpour`: each update makes a version at once. The manager is a process of its own,
with a journal. The workers are agents with servers and sockets in this process. They train nothing:
the update that they publish is a link to a file that was there before, so nearly all that is
measured is the manager's. The raw line reads as many bytes as an update has, and writes and syncs
as many as a version has, with plain files, one after the other. Both take turns several times, and
the median turn counts; `cpu_ms` is the manager's processor time for a push.
"""

from __future__ import annotations

import logging
import os
import secrets
import statistics
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from threading import Event

import numpy as np
import psutil
from common import Row, command_line, folders, show
from load import manager_process, sleeping_worker

import downpour
from downpour.base.values import PublishedFile, Update
from downpour.cluster.worker.attempt import TaskControl
from downpour.core.spec import Spec
from downpour.files.store import SharedDirectory, layout
from downpour.learning.training.epoch_order import part_of
from downpour.network.rpc.messages import TaskMessage

_WINDOW_BYTES = 2**20


class Pusher:
    """Runs tasks that publish the first model that they see, under a name of their own."""

    def __init__(self, shared: SharedDirectory) -> None:
        self.open = Event()
        self._shared = shared
        self._content: PublishedFile | None = None
        self._spec: Spec | None = None

    def run(self, task: TaskMessage, control: TaskControl) -> Update:
        """Wait until pushes are wanted, and publish one."""
        while not self.open.wait(0.1):
            control.raise_if_cancelled()
        control.raise_if_cancelled()
        store = self._shared.store(task.id.experiment)
        folder = self._shared.experiment_path(task.id.experiment)
        spec = self._spec = self._spec or Spec.from_toml(bytes(store.read(task.spec)).decode())
        content = self._content = self._content or self._kept(folder, task.model)
        name = layout.attempt_name("update", task.id, secrets.token_hex(3))
        (folder / name).hardlink_to(folder / content.name)
        part = part_of(spec, len(task.indices), task.id.round)  # type: ignore[arg-type]
        return Update(
            file=PublishedFile(name=name, size_bytes=content.size_bytes, checksum=content.checksum),
            samples=part.samples,
            steps=part.steps,
            loss=1.0,
            load_seconds=0.0,
            train_seconds=0.0,
            publish_seconds=0.0,
        )

    def _kept(self, folder: Path, model: PublishedFile) -> PublishedFile:
        """Link to a model version, which the manager will remove."""
        name = f".kept-{secrets.token_hex(3)}"
        (folder / name).hardlink_to(folder / model.name)
        return PublishedFile(name=name, size_bytes=model.size_bytes, checksum=model.checksum)


def measure(where: str, parent: Path, workers: int, turns: int, seconds: float) -> Row:
    """Let workers push, in turns with the raw line."""
    rates, raws, spent, pushed = [], [], 0.0, 0
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=parent)))
        shared = folder / "shared"
        process, address = stack.enter_context(manager_process(shared))
        client = stack.enter_context(downpour.Client(address))
        pusher = Pusher(SharedDirectory.open(shared, create=False))
        for number in range(workers):
            stack.enter_context(sleeping_worker(f"pusher-{number}", address, pusher.run, shared))
        running = client.submit(experiment(folder, workers))
        log = shared / "experiments" / running
        _wait_for_versions(log, pusher, 2 * workers)
        for _ in range(turns):
            raws.append(_raw(folder, _size_of(shared, running), seconds / 2))
            before, cpu, began = _versions(log), _cpu(process), time.perf_counter()
            pusher.open.set()
            time.sleep(seconds)
            pusher.open.clear()
            time.sleep(0.1)  # those that are under way
            count, spent = _versions(log) - before, spent + _cpu(process) - cpu
            rates.append(count / (time.perf_counter() - began))
            pushed += count
        client.cancel(running)
        pusher.open.set()
    rate, raw = statistics.median(rates), statistics.median(raws)
    return {
        "directory": where,
        "workers": workers,
        "pushes_s": rate,
        "raw_s": raw,
        "ratio": rate / raw,
        "cpu_ms": 1000 * spent / max(1, pushed),
    }


def experiment(folder: Path, shards: int) -> downpour.Spec:
    """Make a spec of the report's network, of 4.8 MB, and more rounds than are waited for."""
    data, labels = folder / "blank.npz", np.arange(10)
    blank = np.zeros((10, 28, 28), dtype=np.uint8)
    times = -(-shards // 10)
    many = np.tile(blank, (times, 1, 1))
    np.savez(data, x=many, y=np.tile(labels, times), x_test=blank, y_test=labels)
    return downpour.Spec(
        name="pushes",
        dataset="npz",
        data_path=str(data),
        model="mnist-cnn",
        mode="downpour",
        shards=shards,
        epochs=1_000_000,
        evaluate_every=0,
    )


def _wait_for_versions(log: Path, pusher: Pusher, count: int) -> None:
    pusher.open.set()
    while _versions(log) < count:
        time.sleep(0.05)
    pusher.open.clear()
    time.sleep(0.5)


def _versions(log: Path) -> int:
    return sum(path.read_bytes().count(b'"kind":"aggregated"') for path in log.glob("journal-*"))


def _size_of(shared: Path, running: str) -> int:
    names = (shared / "experiments" / running).glob("model-*.safetensors")
    return next(iter(names)).stat().st_size


def _cpu(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def _raw(folder: Path, size_bytes: int, seconds: float) -> float:
    """Return how often a second plain files of this size are read and written."""
    content, window = os.urandom(size_bytes), bytearray(_WINDOW_BYTES)
    path, count, began = folder / "raw", 0, time.perf_counter()
    path.write_bytes(content)
    while time.perf_counter() - began < seconds or count < 3:
        with path.open("rb", buffering=0) as file:
            while file.readinto(window):
                pass
        with (folder / "raw-next").open("wb") as file:
            for start in range(0, size_bytes, _WINDOW_BYTES):
                file.write(content[start : start + _WINDOW_BYTES])
            file.flush()
            os.fsync(file.fileno())
        path.unlink()
        (folder / "raw-next").rename(path)
        count += 1
    path.unlink()
    return count / (time.perf_counter() - began)


def main() -> None:
    """Measure on disk and in memory, and print a line for each number of workers."""
    parser = command_line(__doc__)
    parser.add_argument("--workers", type=int, nargs="+", default=[2, 10, 50])
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0, help="length of a turn")
    options = parser.parse_args()
    # A worker that leaves may be in the middle of a heartbeat, and would say so.
    logging.getLogger("downpour").setLevel(logging.ERROR)
    rows = [
        measure(where, parent, workers, options.turns, options.seconds)
        for where, parent in folders().items()
        for workers in options.workers
    ]
    show(rows, as_json=options.json)


if __name__ == "__main__":
    main()
