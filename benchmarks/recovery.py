"""What failures cost: useful work over all work, and what is left behind after many rounds.

`goodput` trains with eight workers of this machine, once undisturbed and once with a failure every
`--every` seconds: a random worker is killed, or with every `--manager-every`th failure the manager;
who was killed is started again at once. `steps_goodput` is the steps of the updates that counted
over all steps that anybody took, those of killed attempts as far as the manager had last heard of
them (limit: 0.88). `cpu_goodput` is the workers' processor time of the undisturbed run over that of
the disturbed one: it includes the imports of those that were started again. `elapsed_ratio` is the
same of the clock. A step that a snapshot has saved was taken once. Both runs
count from the first assignment.

`soak` plays `--soak-rounds` rounds of tasks that train nothing, with a tiny network, through a real
manager and two real workers, and looks at what grows: memory, open files, files in the experiment's
folder, bytes of its log. The log is the only one that should. With `--soak-every`, a worker or the
manager is killed that often meanwhile, as in `goodput`. It is not run unless it is named.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

import numpy as np
import psutil
from common import Row, command_line, show

import downpour
from downpour.cluster.options import training_environment
from downpour.files.store import SharedDirectory
from downpour.record.record import read_record
from downpour.record.record_lines import AssignedLine, RecordLine, UpdatedLine

LIMIT = 0.88
LOOK_SECONDS = 0.2
START_SECONDS = 120.0


class Child:
    """A command that serves, in a process of its own; what it says goes into a file.

    Its variables are those of this process, unless others are given, and one thread as local
    workers have it, which share the cores.
    """

    def __init__(
        self, log: Path, *words: str, environment: Mapping[str, str] | None = None
    ) -> None:
        self._log = log
        command = [sys.executable, "-m", "downpour", *words]
        with log.open("ab") as file:
            self._from = file.tell()
            variables = {**(environment or os.environ), **training_environment(1)}
            self._popen = subprocess.Popen(command, stderr=file, env=variables)
        self.process = psutil.Process(self._popen.pid)

    def says(self, pattern: str) -> str:
        """Wait until it says something, and return the first group."""
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline and self._popen.poll() is None:
            if found := re.search(pattern, self._log.read_bytes()[self._from :].decode()):
                return found[1]
            time.sleep(0.02)
        raise SystemExit(f"did not start: {self._log.read_text()}")

    @property
    def cpu_seconds(self) -> float:
        """Return the processor time that it took so far."""
        times = self.process.cpu_times()
        return float(times.user + times.system)

    def end(self, number: signal.Signals = signal.SIGKILL) -> None:
        """End it, and wait for that."""
        self._popen.send_signal(number)
        self._popen.wait()


class Cluster:
    """A manager and workers of this machine; a context manager."""

    def __init__(self, folder: Path, workers: int) -> None:
        self.shared = folder / "shared"
        self._logs = folder
        self.manager = self._manager("0")
        self.address = self._address()
        self.workers = [self._worker(number) for number in range(workers)]
        for worker in self.workers:
            worker.says(r"worker at (\S+)")
        self._spent_seconds = 0.0

    def __enter__(self) -> Self:
        """Everything has started."""
        return self

    def __exit__(self, *_: object) -> None:
        """End everything."""
        for child in (*self.workers, self.manager):
            child.end()

    @property
    def cpu_seconds(self) -> float:
        """Return the processor time of all workers, those that were killed included."""
        return self._spent_seconds + sum(worker.cpu_seconds for worker in self.workers)

    def kill_manager(self) -> None:
        """Kill the manager; another begins at the same address, and is not waited for."""
        self.manager.end()
        self.manager = self._manager(self.address.rpartition(":")[2])

    def kill_worker(self, number: int) -> None:
        """Kill a worker; another begins in its place, and is not waited for."""
        self._spent_seconds += self.workers[number].cpu_seconds
        self.workers[number].end()
        self.workers[number] = self._worker(number)

    def _manager(self, port: str) -> Child:
        words = "manager", "--shared", str(self.shared), "--port", port
        return Child(self._logs / "manager.log", *words)

    def _address(self) -> str:
        return self.manager.says(r"manager at (\S+),")

    def _worker(self, number: int) -> Child:
        words = "worker", "--shared", str(self.shared), "--manager", self.address
        return Child(self._logs / f"worker-{number}.log", *words, "--name", f"worker-{number}")


class Course:
    """One experiment from its first assignment to its end, and what is done to it meanwhile."""

    def __init__(self, cluster: Cluster, spec: downpour.Spec) -> None:
        self.cluster = cluster
        self.client = downpour.Client(cluster.address)
        self.experiment = self.client.submit(spec)
        self.rounds_done, self.ended = 0, False
        self._steps: dict[tuple[int, int, str], int] = {}
        while not any(isinstance(fact, AssignedLine) for fact in self.record()):
            time.sleep(LOOK_SECONDS)
        self._began, self._cpu_before = time.monotonic(), cluster.cpu_seconds

    @property
    def folder(self) -> Path:
        """The experiment's folder."""
        return SharedDirectory(self.cluster.shared).experiment_path(self.experiment)

    def record(self) -> list[RecordLine]:
        """Return what is on record."""
        return [fact for _, fact in read_record(self.folder / "record.jsonl")]

    def watch(self, seconds: float) -> bool:
        """Look how far the tasks come, for so long or to the end; says whether that has come."""
        until = time.monotonic() + seconds
        while not self.ended and time.monotonic() < until:
            time.sleep(LOOK_SECONDS)
            with suppress(downpour.DownpourError):  # there may be no manager just now
                self._look()
        return self.ended

    def _look(self) -> None:
        status = self.client.status(self.experiment)
        summary = status.experiment
        if summary is None:
            return
        self.rounds_done, self.ended = summary.rounds_done, summary.state.ended
        if summary.reason:
            raise SystemExit(summary.reason)
        for task in status.tasks:
            key = self.rounds_done, task.shard, task.worker or ""
            self._steps[key] = max(self._steps.get(key, 0), task.steps_done)

    def steps(self) -> tuple[int, int]:
        """Return the steps that counted, and all that were taken."""
        story = self.record()
        updates = [fact for fact in story if isinstance(fact, UpdatedLine)]
        counted = {(one.round, one.shard, one.attempt): one.steps for one in updates}
        taken = 0
        for one in story:
            if isinstance(one, AssignedLine):
                heard = self._steps.get((one.round, one.shard, one.worker), 0)
                reached = counted.get((one.round, one.shard, one.attempt), heard)
                taken += max(0, reached - one.from_step)
        return sum(counted.values()), taken

    def spent(self) -> tuple[float, float]:
        """Return the seconds since the first assignment: the workers' processors', the clock's."""
        return self.cluster.cpu_seconds - self._cpu_before, time.monotonic() - self._began


class Killer:
    """Kills a random worker, or every so often the manager, and counts them."""

    def __init__(self, cluster: Cluster, options: argparse.Namespace) -> None:
        self.managers = self.workers = 0
        self._cluster = cluster
        self._manager_every: int = options.manager_every
        self._random = random.Random(options.seed)

    def strike(self) -> None:
        """Kill one of them."""
        if (self.managers + self.workers + 1) % self._manager_every == 0:
            self.managers += 1
            self._cluster.kill_manager()
        else:
            self.workers += 1
            self._cluster.kill_worker(self._random.randrange(len(self._cluster.workers)))


def goodput(options: argparse.Namespace) -> list[Row]:
    """Train undisturbed and disturbed, and compare."""
    with tempfile.TemporaryDirectory() as folder:
        spec = work(Path(folder), options)
        with Cluster(Path(folder), options.workers) as cluster:
            calm = Course(cluster, spec)
            calm.watch(float("inf"))
            calm_cpu, calm_seconds = calm.spent()
            course = Course(cluster, spec)
            killer = Killer(cluster, options)
            while not course.watch(options.every):
                killer.strike()
            cpu, seconds = course.spent()
            (useful, taken), calm_steps = course.steps(), calm.steps()
            assert calm_steps[0] == useful, "not the same work"
    row: Row = {
        "measured": "goodput",
        "workers": options.workers,
        "task_cpu_seconds": calm_cpu / (options.workers * options.rounds),
        "workers_killed": killer.workers,
        "managers_killed": killer.managers,
        "steps_counted": useful,
        "steps_taken": taken,
        "steps_goodput": useful / taken,
        "limit": LIMIT,
        "cpu_goodput": calm_cpu / cpu,
        "elapsed_seconds": seconds,
        "elapsed_ratio": calm_seconds / seconds,
    }
    return [row]


def work(folder: Path, options: argparse.Namespace) -> downpour.Spec:
    """Make a spec whose tasks take a while, and its data: noise, which costs as much as digits."""
    count = options.workers * options.samples
    noise = np.random.default_rng(0)
    pixels = noise.integers(0, 256, (count, 28, 28), dtype=np.uint8)
    data, labels = folder / "noise.npz", np.arange(count) % 10
    np.savez(data, x=pixels, y=labels, x_test=pixels[:10], y_test=labels[:10])
    return downpour.Spec(
        name="goodput",
        dataset="npz",
        data_path=str(data),
        model="mnist-cnn",
        shards=options.workers,
        epochs=options.rounds,
        learning_rate=0.001,
        retries=1000,
        evaluate_every=0,
        **dict(options.set),
    )


def soak(options: argparse.Namespace) -> list[Row]:
    """Play many rounds, and look at what grows."""
    rounds = options.soak_rounds
    marks = options.marks or [rounds // 10, rounds // 2, rounds]
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as folder, Cluster(Path(folder), 2) as cluster:
        course, killer = Course(cluster, trifle(Path(folder), rounds)), Killer(cluster, options)
        due = time.monotonic() + options.soak_every
        for mark in sorted(marks):
            while course.rounds_done < mark and not course.ended:
                course.watch(LOOK_SECONDS)
                if time.monotonic() >= due:
                    killer.strike()
                    due = time.monotonic() + options.soak_every
            killed = {"workers_killed": killer.workers, "managers_killed": killer.managers}
            rows.append({**remains(course), **killed})
        useful, taken = course.steps()
    print(f"{useful:,} of {taken:,} steps counted: {useful / taken:.4f}", file=sys.stderr)
    return rows


def trifle(folder: Path, rounds: int) -> downpour.Spec:
    """Make a spec of tasks that train nothing, and its data."""
    data, labels = folder / "blank.npz", np.array([0, 1])
    blank = np.zeros((2, 8, 8), dtype=np.uint8)
    np.savez(data, x=blank, y=labels, x_test=blank[:1], y_test=labels[:1])
    return downpour.Spec(
        name="soak",
        dataset="npz",
        data_path=str(data),
        model="mlp",
        model_options={"hidden": 8},
        shards=2,
        epochs=rounds,
        retries=1000,
        batch_size=1,
        local_steps=1,
        evaluate_every=0,
    )


def remains(course: Course) -> Row:
    """Return what is there now: of memory, descriptors, files and bytes."""
    files = [path for path in course.folder.iterdir() if path.exists()]
    manager, workers = course.cluster.manager.process, course.cluster.workers
    return {
        "measured": "soak",
        "rounds": course.rounds_done,
        "manager_mb": manager.memory_info().rss / 1e6,
        "worker_mb": statistics.mean(one.process.memory_info().rss for one in workers) / 1e6,
        "manager_files_open": manager.num_fds(),
        "worker_files_open": max(one.process.num_fds() for one in workers),
        "manager_threads": manager.num_threads(),
        "files": len(files),
        "journal_kb": bytes_of(files, "journal-") / 1e3,
        "elapsed_seconds": course.spent()[1],
    }


def bytes_of(files: list[Path], prefix: str) -> int:
    """Return the bytes of files whose names begin so; one may go while it is looked at."""
    size_bytes = 0
    for path in files:
        if path.name.startswith(prefix):
            with suppress(FileNotFoundError):
                size_bytes += path.stat().st_size
    return size_bytes


def field(text: str) -> tuple[str, Any]:
    """Read a field of a spec, and its number."""
    name, _, number = text.partition("=")
    return name, float(number) if "." in number else int(number)


PARTS = {"goodput": goodput, "soak": soak}


def main() -> None:
    """Measure and print."""
    parser = command_line(__doc__)
    parser.add_argument(
        "parts", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)}; usually goodput alone"
    )
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=3, help="rounds of each of the two runs")
    parser.add_argument("--samples", type=int, default=10_000, help="examples of a task")
    parser.add_argument("--every", type=float, default=15.0, help="seconds between failures")
    parser.add_argument("--manager-every", type=int, default=4, help="failures to a manager's")
    parser.add_argument("--seed", type=int, default=0, help="decides who is killed")
    parser.add_argument(
        "--set",
        type=field,
        action="append",
        default=[],
        metavar="FIELD=N",
        help="a field of goodput's spec",
    )
    parser.add_argument("--soak-rounds", type=int, default=10_000)
    parser.add_argument(
        "--soak-every", type=float, default=float("inf"), help="seconds between kills of a soak"
    )
    parser.add_argument("--marks", type=int, nargs="+", help="rounds after which soak looks")
    options = parser.parse_args()
    if unknown := set(options.parts) - set(PARTS):
        parser.error(f"no part {', '.join(sorted(unknown))}; there are {', '.join(PARTS)}")
    rows = [row for part in options.parts or ["goodput"] for row in PARTS[part](options)]
    show(rows, as_json=options.json)


if __name__ == "__main__":
    main()
