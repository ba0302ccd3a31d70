"""What many workers cost the manager: its processor time, its memory and its threads.

The workers are real agents with real servers and sockets, `--together` of them in a process; they
send heartbeats and train nothing: a task sleeps, then publishes the model it was given. The
manager is a process of its own, started by the command. It is watched by one client, as
`downpour run` and `downpour watch` do. Two phases are measured, each for `--seconds`: idle, and an
experiment of many rounds with as many shards as workers.

`cores` is processor time of the manager's process over elapsed time (limit: 0.5 for 200 workers),
hence little disturbed by whatever else the machine does. `above_torch_mb` is its resident memory
above that of a process that has only imported torch, measured alike (limit: 100 MB);
`above_torch_private_mb` leaves out what processes share. `ms_a_task` is the processor time beyond
idle for one task: its assignment, its report and its share of the round. `steal` is the share of
this machine's processor time that others took, `load_average` how busy it was.
"""

from __future__ import annotations

import argparse
import logging
import os
import re
import secrets
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from threading import Thread

import numpy as np
import psutil
from common import Row, command_line, folders, show

import downpour
from downpour.base.errors import DeadlineExceeded
from downpour.base.values import NumericClass, Update
from downpour.cluster.worker.agent import RunTask, WorkerAgent
from downpour.cluster.worker.attempt import TaskControl
from downpour.core.spec import Spec
from downpour.files.store import SharedDirectory, decode, encode, layout
from downpour.learning.training.epoch_order import part_of
from downpour.network.rpc import ManagerClient, parse_address, serve_worker
from downpour.network.rpc.messages import IndicesFile, TaskMessage

NUMERICS = NumericClass(torch="none", device="cpu", instruction_set="none")
_STEP_SECONDS = 0.25
"""Long, because hundreds of these workers share a process, and a step costs it a little time."""


class Sleeper:
    """Runs tasks that train nothing."""

    def __init__(self, shared: SharedDirectory, task_seconds: float) -> None:
        self._shared = shared
        self._task_seconds = task_seconds

    def run(self, task: TaskMessage, control: TaskControl) -> Update:
        """Sleep, then publish the model of the task as its update."""
        ends_at = time.monotonic() + self._task_seconds
        while (left := ends_at - time.monotonic()) > 0:
            control.raise_if_cancelled()
            time.sleep(min(left, _STEP_SECONDS))
        store, number = self._shared.store(task.id.experiment), task.id
        name = layout.attempt_name("update", number, secrets.token_hex(3))
        model = decode(store.read(task.model), task.model.name).tensors
        spec = Spec.from_toml(bytes(store.read(task.spec)).decode())
        indices = task.indices
        held = indices.count if isinstance(indices, IndicesFile) else len(indices)
        part = part_of(spec, held, number.round)
        return Update(
            file=store.put_new(name, encode(model, {})),
            samples=part.samples,
            steps=part.steps,
            loss=1.0,
            load_seconds=0.0,
            train_seconds=self._task_seconds,
            publish_seconds=0.0,
        )


@contextmanager
def manager_process(shared: Path) -> Iterator[tuple[psutil.Process, str]]:
    """Run `downpour manager` in a process of its own; yields it and its address."""
    command = [sys.executable, "-m", "downpour", "manager", "--port", "0"]
    # A file, because the manager would block at a log line once a pipe is full, and nothing reads
    # one here.
    with (
        tempfile.NamedTemporaryFile("r") as said,
        open(said.name, "w") as stderr,
        subprocess.Popen([*command, "--shared", str(shared)], stderr=stderr) as process,
    ):
        try:
            while not (found := re.search(r"at (\S+:\d+)", said.read())):
                said.seek(0)
                time.sleep(0.02)
            yield psutil.Process(process.pid), found[1]
        finally:
            process.terminate()


@contextmanager
def sleeping_workers(options: argparse.Namespace, address: str, shared: Path) -> Iterator[None]:
    """Run the workers in processes of their own, and wait until all are registered."""
    command = [sys.executable, __file__, "--join", address, "--shared", str(shared)]
    command += ["--task-seconds", str(options.task_seconds)]
    with ExitStack() as stack:
        for first in range(0, options.workers, options.together):
            count = min(options.together, options.workers - first)
            words = [*command, "--first", str(first), "--workers", str(count)]
            process = stack.enter_context(subprocess.Popen(words, stdout=subprocess.PIPE))
            stack.callback(process.terminate)
            # One after the other, because each registration is called back.
            assert process.stdout is not None
            if not process.stdout.readline():
                raise SystemExit("some workers could not join")
        yield


def join(options: argparse.Namespace) -> None:
    """Run some workers in this process until it is ended."""
    sleeper = Sleeper(SharedDirectory.open(options.shared, create=False), options.task_seconds)
    with ExitStack() as stack:
        for number in range(options.first, options.first + options.workers):
            worker = f"sleeper-{number}"
            stack.enter_context(sleeping_worker(worker, options.join, sleeper.run, options.shared))
        print("joined", flush=True)
        # Without goodbyes, because hundreds of them would take longer than the manager's end.
        signal.pause()


@contextmanager
def sleeping_worker(name: str, address: str, run: RunTask, shared: Path) -> Iterator[None]:
    """Run a worker in this process, whose tasks are run so."""
    # Patient, because hundreds of workers join at a time on a machine that may be busy.
    manager = ManagerClient(parse_address(address), timeout_seconds=120.0)
    directory = SharedDirectory.open(shared, create=False)
    agent = WorkerAgent(manager, directory, name, NUMERICS, run)
    server = serve_worker(agent, "127.0.0.1", 0).start()
    agent.register(server.address.host, server.address.port)
    thread = Thread(target=agent.run)
    thread.start()
    try:
        yield
    finally:
        agent.leave()
        thread.join()
        server.stop()
        manager.close()


def experiment(folder: Path, shards: int, policy: str = "wait") -> downpour.Spec:
    """Make a spec of a tiny network and more rounds than anybody waits for."""
    data, labels = folder / "blank.npz", np.arange(shards) % 10
    labels[0] = 9
    blank = np.zeros((shards, 8, 8), dtype=np.uint8)
    np.savez(data, x=blank, y=labels, x_test=blank[:1], y_test=labels[:1])
    return downpour.Spec(
        name="load",
        dataset="npz",
        data_path=str(data),
        model="mlp",
        model_options={"hidden": 8},
        shards=shards,
        epochs=1_000_000,
        evaluate_every=0,
        policy=policy,
    )


def watch(client: downpour.Client) -> None:
    """Look at what goes on whenever it changes, until no manager answers."""
    try:
        for _ in client.watch():
            pass
    except downpour.DownpourError:
        return


def torch_memory() -> tuple[int, int]:
    """Return the resident and the private bytes of a process that has only imported torch."""
    script = "import torch; print('done', flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        memory = psutil.Process(process.pid).memory_full_info()
        process.kill()
    return memory.rss, memory.uss


def cores(process: psutil.Process, seconds: float) -> float:
    """Return the processor seconds a second that a process takes, over some seconds."""
    began, before = time.monotonic(), _cpu_seconds(process)
    time.sleep(seconds)
    return (_cpu_seconds(process) - before) / (time.monotonic() - began)


def _cpu_seconds(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def measure(options: argparse.Namespace, folder: Path) -> list[Row]:
    """Measure both phases; returns a row for each."""
    base_rss, base_private = torch_memory()

    def row(phase: str, took: float) -> Row:
        memory = process.memory_full_info()
        return {
            "phase": phase,
            "workers": options.workers,
            "cores": took,
            "rss_mb": memory.rss / 1e6,
            "torch_rss_mb": base_rss / 1e6,
            "above_torch_mb": (memory.rss - base_rss) / 1e6,
            "above_torch_private_mb": (memory.uss - base_private) / 1e6,
            "threads": process.num_threads(),
            "descriptors": process.num_fds(),
            "known": len(client.status().workers),
            "joining_seconds": joining_seconds,
            "load_average": os.getloadavg()[0],
            "steal": psutil.cpu_times_percent().steal / 100,
        }

    shared = folder / "shared"
    with ExitStack() as stack:
        process, address = stack.enter_context(manager_process(shared))
        client = stack.enter_context(downpour.Client(address))
        began = time.monotonic()
        stack.enter_context(sleeping_workers(options, address, shared))
        joining_seconds = time.monotonic() - began
        for _ in range(options.watchers):
            Thread(target=watch, args=(client,), daemon=True).start()
        time.sleep(2.0)
        idle = cores(process, options.seconds)
        rows = [row("idle", idle)]
        running = client.submit(experiment(folder, options.workers, options.policy))
        while not (rounds := _rounds(client, running)):
            time.sleep(0.5)
        began, before = time.monotonic(), _cpu_seconds(process)
        while (done := _rounds(client, running) - rounds) < options.rounds_min:
            time.sleep(options.seconds)
        elapsed = time.monotonic() - began
        busy = (_cpu_seconds(process) - before) / elapsed
        tasks = done * options.workers
        found = row("experiment", busy)
        rows.append(
            {
                **found,
                "rounds_a_second": done / elapsed,
                "tasks_a_second": tasks / elapsed,
                "ms_a_task": 1000 * (busy - idle) * elapsed / tasks,
            }
        )
        client.cancel(running)
    return rows


def _rounds(client: downpour.Client, experiment: str) -> int:
    """Ask until the manager answers: thousands of workers on few cores leave it little time."""
    while True:
        with suppress(DeadlineExceeded):
            summary = client.status(experiment).experiment
            return summary.rounds_done if summary else 0


def main() -> None:
    """Measure and print."""
    parser = command_line(__doc__)
    parser.add_argument("--workers", type=int, default=200)
    parser.add_argument("--watchers", type=int, default=1, help="clients that watch")
    parser.add_argument("--seconds", type=float, default=30.0, help="length of each phase")
    parser.add_argument("--task-seconds", type=float, default=2.0, help="how long a task sleeps")
    parser.add_argument("--policy", default="handoff", help="the straggler policy")
    parser.add_argument("--together", type=int, default=250, help="workers in a process")
    parser.add_argument("--rounds-min", type=int, default=1, help="measure on until there are")
    parser.add_argument("--join", metavar="ADDRESS", help=argparse.SUPPRESS)
    parser.add_argument("--shared", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--first", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    # A worker that leaves may be in the middle of a heartbeat, and would say so.
    logging.getLogger("downpour").setLevel(logging.ERROR)
    if options.join:
        join(options)
        return
    with tempfile.TemporaryDirectory(dir=folders().get("memory")) as folder:
        show(measure(options, Path(folder)), as_json=options.json)


if __name__ == "__main__":
    main()
