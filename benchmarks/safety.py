"""What it costs, where nothing goes wrong, that a manager may die at any time.

`journal` plays rounds of tasks that train nothing, with a tiny network, by turns with the journal
and with one that writes nothing; the manager is this process, its two workers are not. `round_ms`
is the median round, `cpu_ms` this process's time for one, and the differences are the journal's.

`overhead` trains for real, and adds up the processor time that the manager spends on its journal
(encoding, writing, syncing), on its lease, and on looking whether it still leads. `share` is
that over the processor time of the workers (limit: 0.02).

`policy` trains as `overhead` does, by turns with `wait` and with `handoff`, while nothing slows a
worker. `cpu_share` is what `handoff` costs all processes more, over what they take with `wait`: the
mean of the pairs, and its standard error. `decide_share` is what the manager spends on decisions,
measured directly, over the same (limit: 0.01). `moves` are shards that were handed over: on a busy
machine workers are slowed, and each move costs another loading.

`leader` is that look alone, which comes once with each batch of events: it lists a folder that has
a file for every manager there ever was. `--folder` measures in another one, such as an NFS mount.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
from common import Row, command_line, folders, show
from recovery import Child, trifle

import downpour
from downpour.cluster.manager import work
from downpour.cluster.manager.process import start_manager
from downpour.cluster.options import ManagerOptions
from downpour.core.scheduler import Checkpoint, Journaled, dispatch
from downpour.files.store import SharedDirectory
from downpour.files.store.lease import Lease
from downpour.record.journal import Journal
from downpour.record.record import read_record
from downpour.record.record_lines import AggregatedLine, AssignedLine, HandOverAskedLine, RecordLine

LIMIT = 0.02
POLICY_LIMIT = 0.01
WORKERS = 2


class Silent(Journal):
    """A log that forgets everything at once."""

    def append(self, order: int, at_seconds: float, entry: Journaled) -> None:
        """Forget an entry."""

    def begin_anew(self, order: int, at_seconds: float, entry: Checkpoint) -> None:
        """Forget a checkpoint."""

    def commit(self, *, durably: bool = True) -> None:
        """Write nothing."""


class Meter:
    """Adds up the processor time of calls, those within others once."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._inside = False

    def on(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function that does the same and is measured."""

        def measured(*words: Any, **named: Any) -> Any:
            if self._inside:
                return call(*words, **named)
            self._inside, began = True, time.thread_time()
            try:
                return call(*words, **named)
            finally:
                self._inside = False
                self.seconds += time.thread_time() - began

        return measured


class Cluster:
    """A manager in this process, and two workers of their own."""

    def __init__(self, folder: Path) -> None:
        self.shared = folder / "shared"
        self._manager = start_manager(ManagerOptions(shared=str(self.shared), port=0))
        words = "worker", "--shared", str(self.shared), "--manager", str(self._manager.address)
        logs = [folder / f"worker-{number}.log" for number in range(WORKERS)]
        self._workers = [Child(log, *words, "--name", log.stem) for log in logs]
        for worker in self._workers:
            worker.says(r"worker at (\S+)")
        self._client = downpour.Client(str(self._manager.address))

    @property
    def worker_cpu_seconds(self) -> float:
        """Return the processor time of both workers so far."""
        return sum(worker.cpu_seconds for worker in self._workers)

    def run(self, spec: downpour.Spec) -> list[tuple[float, RecordLine]]:
        """Run an experiment; returns its record."""
        experiment = self._client.submit(spec)
        while not self._summary(experiment).state.ended:
            time.sleep(0.05)
        folder = SharedDirectory(self.shared).experiment_path(experiment)
        return read_record(folder / "record.jsonl")

    def close(self) -> None:
        """End everything."""
        self._client.close()
        for worker in self._workers:
            worker.end()
        self._manager.close()

    def _summary(self, experiment: str) -> Any:
        return self._client.status(experiment).experiment


@contextmanager
def cluster(parent: Path | None = None) -> Iterator[tuple[Cluster, Path]]:
    """Run a cluster in a folder of its own; yields both."""
    with tempfile.TemporaryDirectory(dir=parent) as folder:
        made = Cluster(Path(folder))
        try:
            yield made, Path(folder)
        finally:
            made.close()


def journal(options: argparse.Namespace) -> list[Row]:
    """Compare rounds with and without a journal, by turns."""
    rows: list[Row] = []
    for where, parent in folders().items():
        took: dict[type[Journal], list[tuple[float, float]]] = {Journal: [], Silent: []}
        with cluster(parent) as (made, folder):
            spec = trifle(folder, options.rounds)
            made.run(spec)  # what is done once, such as imports, is done
            for turn in range(options.turns):
                for kind in sorted(took, key=lambda one: (one is Silent) ^ (turn % 2)):
                    with patch.object(work, "Journal", kind):
                        took[kind].append(rounds_of(made, spec))
        (round_ms, cpu_ms), (bare_ms, bare_cpu_ms) = (
            tuple(statistics.median(column) for column in zip(*each, strict=True))
            for each in took.values()
        )
        rows.append(
            {
                "measured": "journal",
                "directory": where,
                "round_ms": round_ms,
                "without_ms": bare_ms,
                "journal_ms": round_ms - bare_ms,
                "cpu_ms": cpu_ms,
                "cpu_without_ms": bare_cpu_ms,
                "journal_cpu_ms": cpu_ms - bare_cpu_ms,
            }
        )
    return rows


def rounds_of(made: Cluster, spec: downpour.Spec) -> tuple[float, float]:
    """Run an experiment; returns its median round, and this process's time for one, in ms."""
    before = time.process_time()
    story = made.run(spec)
    spent = time.process_time() - before
    times = [at for at, fact in story if isinstance(fact, AggregatedLine)]
    seconds = statistics.median(after - begun for begun, after in itertools.pairwise(times))
    return 1000 * seconds, 1000 * spent / spec.epochs


@contextmanager
def metered(meter: Meter, owner: type, *names: str) -> Iterator[None]:
    """Measure some methods of a class."""
    with ExitStack() as stack:
        for name in names:
            stack.enter_context(patch.object(owner, name, meter.on(getattr(owner, name))))
        yield


def overhead(options: argparse.Namespace) -> list[Row]:
    """Train for real, and add up what safety takes."""
    meter, looks = Meter(), Meter()
    in_office = property(looks.on(Lease.is_leader.fget))  # type: ignore[attr-defined]
    with (
        metered(meter, Journal, "append", "begin_anew", "commit", "close"),
        metered(looks, Lease, "acquire", "claim"),
        patch.object(Lease, "is_leader", in_office),
        cluster() as (made, folder),
    ):
        before, began = made.worker_cpu_seconds, time.process_time()
        story = made.run(training(folder, options))
        tasks = made.worker_cpu_seconds - before
        manager = time.process_time() - began
    count = sum(isinstance(fact, AssignedLine) for _, fact in story)
    row: Row = {
        "measured": "overhead",
        "tasks": count,
        "task_cpu_seconds": tasks / count,
        "manager_cpu_seconds": manager,
        "journal_cpu_ms": 1000 * meter.seconds,
        "office_cpu_ms": 1000 * looks.seconds,
        "share": (meter.seconds + looks.seconds) / tasks,
        "limit": LIMIT,
    }
    return [row]


def policy(options: argparse.Namespace) -> list[Row]:
    """Compare trainings with the policy that looks and the one that waits, by turns."""
    seconds: dict[str, list[float]] = {"wait": [], "handoff": []}
    meters, moves = {name: Meter() for name in seconds}, 0
    with cluster() as (made, folder):
        spec = training(folder, options)
        made.run(spec.replace(epochs=1))
        for turn in range(options.pairs):
            for name in sorted(seconds, reverse=turn % 2 == 0):
                before = time.process_time() + made.worker_cpu_seconds
                with patch.object(dispatch, "decide", meters[name].on(dispatch.decide)):
                    story = made.run(spec.replace(policy=name))
                seconds[name].append(time.process_time() + made.worker_cpu_seconds - before)
                moves += sum(isinstance(fact, HandOverAskedLine) for _, fact in story)
    more = [own / wait - 1 for wait, own in zip(*seconds.values(), strict=True)]
    row: Row = {
        "measured": "policy",
        "pairs": options.pairs,
        "wait_cpu_seconds": statistics.mean(seconds["wait"]),
        "cpu_share": statistics.mean(more),
        "standard_error": statistics.stdev(more) / len(more) ** 0.5,
        "decide_share": meters["handoff"].seconds / sum(seconds["wait"]),
        "decide_share_wait": meters["wait"].seconds / sum(seconds["wait"]),
        "moves": moves,
        "limit": POLICY_LIMIT,
    }
    return [row]


def training(folder: Path, options: argparse.Namespace) -> downpour.Spec:
    """Make a spec that trains for a while, and its data."""
    count = 2 * WORKERS * options.samples
    pixels = np.random.default_rng(0).integers(0, 256, (count, 28, 28), dtype=np.uint8)
    data, labels = folder / "noise.npz", np.arange(count) % 10
    np.savez(data, x=pixels, y=labels, x_test=pixels[:10], y_test=labels[:10])
    return downpour.Spec(
        name="overhead",
        dataset="npz",
        data_path=str(data),
        model="mnist-cnn",
        shards=2 * WORKERS,
        epochs=5,
        learning_rate=0.001,
        evaluate_every=0,
    )


def leader(options: argparse.Namespace) -> list[Row]:
    """Look again and again whether there is a later manager."""
    places = {"given": options.folder} if options.folder else folders()
    rows: list[Row] = []
    for where, parent in places.items():
        for terms in (1, 100):
            with tempfile.TemporaryDirectory(dir=parent) as folder:
                shared = SharedDirectory.open(Path(folder), create=True)
                leases = [Lease(shared) for _ in range(terms)]
                for lease in leases:
                    lease.claim("127.0.0.1:1")
                seconds = [look(leases[-1]) for _ in range(500)]
            rows.append(
                {
                    "measured": "leader",
                    "directory": where,
                    "terms": terms,
                    "look_ms": 1000 * statistics.median(seconds),
                    "look_most_ms": 1000 * max(seconds),
                }
            )
    return rows


def look(lease: Lease) -> float:
    """Return how long one look took."""
    began = time.perf_counter()
    assert lease.is_leader
    return time.perf_counter() - began


PARTS = {"journal": journal, "overhead": overhead, "policy": policy, "leader": leader}


def main() -> None:
    """Measure and print."""
    parser = command_line(__doc__)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)}")
    parser.add_argument("--rounds", type=int, default=200, help="of each run of `journal`")
    parser.add_argument("--turns", type=int, default=5, help="runs of `journal`; their median")
    parser.add_argument("--samples", type=int, default=3000, help="examples of `overhead`'s tasks")
    parser.add_argument("--pairs", type=int, default=10, help="of runs of `policy`, two at least")
    parser.add_argument("--folder", type=Path, help="where `leader` looks")
    options = parser.parse_args()
    if unknown := set(options.parts) - set(PARTS):
        parser.error(f"no part {', '.join(sorted(unknown))}; there are {', '.join(PARTS)}")
    rows = [row for part in options.parts or PARTS for row in PARTS[part](options)]
    show(rows, as_json=options.json)


if __name__ == "__main__":
    main()
