"""Seconds from the command to the first batch: `downpour run` as a process, with 2 and 10 workers.

The clock starts when the process is started. The first batch has been trained when some worker has
done its first step: the record says when each task was assigned, how long its worker took to load
and, as only one step is asked for, to train. The record counts from the manager's own zero; it is
tied to this clock by the moment its first line appears in the shared directory, which is looked at
every two milliseconds.

Columns are seconds since the start, in the order in which things happen: `launched` (Python, the
command's imports, the spec), `manager` (the fork server has imported torch and the manager
serves), `submitted`, `dataset` (decoded or found, cut, the first model published), `joined` (the
first worker; workers are forked when their part of the imports is done), `assigned`, `first_batch`
(limits: 6 s with 2 workers, 8 s with 10). `cpu_seconds` is the processor time of the whole run
with all its processes; unlike the others it means something on a busy machine, too.

MNIST is measured where `--data-dir` or DOWNPOUR_DATA names a folder that has it, else the digits;
each once with a new shared directory and once with the dataset prepared.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path

from common import Row, command_line, show

from downpour.record.record import read_record
from downpour.record.record_lines import (
    AssignedLine,
    PreparedLine,
    RecordLine,
    UpdatedLine,
    WorkerJoinedLine,
)

LOOK_SECONDS = 0.002
LIMITS_SECONDS = {2: 6.0, 10: 8.0}

# What appears in the shared directory, and what that means.
SIGNS = {
    "launched": "logs/*",
    "manager": "presence/*",
    "submitted": "experiments/*/journal-*.jsonl",
}


def start(workers: int, dataset: str, shared: Path, data_dir: str | None) -> dict[str, float]:
    """Run once; returns seconds since the start by milestone, and the processor seconds."""
    command = [sys.executable, "-m", "downpour.cli", "run", "--workers", str(workers)]
    command += ["--dataset", dataset, "--model", f"{dataset}-cnn", "--epochs", "1", "--json"]
    command += ["--local-steps", "1", "--evaluate-every", "0", "--shared", str(shared)]
    command += ["--data-dir", data_dir] if data_dir else []
    signs = *SIGNS.values(), "experiments/*/spec.toml"
    old = {path for sign in signs for path in shared.glob(sign)}
    spent, began = _children_seconds(), time.monotonic()
    found: dict[str, float] = {}
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as process:
        for name, sign in SIGNS.items():
            while process.poll() is None and not _has_news(shared, sign, old):
                time.sleep(LOOK_SECONDS)
            found[name] = time.monotonic() - began
        _, complaint = process.communicate()
    if process.returncode:
        raise SystemExit(complaint.decode())
    spec = next(path for path in shared.glob("experiments/*/spec.toml") if path not in old)
    found |= milestones(read_record(spec.with_name("record.jsonl")), found["submitted"])
    return {**found, "cpu_seconds": _children_seconds() - spent}


def milestones(record: Iterable[tuple[float, RecordLine]], submitted: float) -> dict[str, float]:
    """Return what the record tells, in seconds of the clock by which it began at `submitted`."""
    story = list(record)
    zero = story[0][0] - submitted

    def first(kind: type[RecordLine]) -> float:
        return next((at for at, fact in story if isinstance(fact, kind)), float("nan")) - zero

    assigned = {
        (fact.shard, fact.attempt): at for at, fact in story if isinstance(fact, AssignedLine)
    }
    batches = [
        assigned[fact.shard, fact.attempt] + fact.load_seconds + fact.train_seconds
        for _, fact in story
        if isinstance(fact, UpdatedLine)
    ]
    return {
        "dataset": first(PreparedLine),
        "joined": first(WorkerJoinedLine),
        "assigned": first(AssignedLine),
        "first_batch": min(batches) - zero,
    }


def measure(options: argparse.Namespace) -> list[Row]:
    """Return a row for each number of workers, with and without a prepared dataset."""
    dataset = "mnist" if options.data_dir else "digits"
    rows: list[Row] = []
    for workers in options.workers:
        runs: dict[str, list[dict[str, float]]] = {"no": [], "yes": []}
        for _ in range(options.repeats):
            with tempfile.TemporaryDirectory() as folder:
                for each in runs.values():
                    shared = Path(folder) / "shared"
                    each.append(start(workers, dataset, shared, options.data_dir))
        for prepared, each in runs.items():
            medians = {name: statistics.median(run[name] for run in each) for name in each[0]}
            head: Row = {"dataset_name": dataset, "workers": workers, "prepared": prepared}
            rows.append({**head, **medians, "limit_seconds": LIMITS_SECONDS.get(workers, "")})
    return rows


def _has_news(shared: Path, sign: str, old: set[Path]) -> bool:
    """Whether something new is there, with content where it is a record."""
    new = (path for path in shared.glob(sign) if path not in old)
    return any(path.suffix != ".jsonl" or path.stat().st_size for path in new)


def _children_seconds() -> float:
    """Return the processor seconds of all processes that this one has waited for."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def main() -> None:
    """Measure and print."""
    parser = command_line(__doc__)
    parser.add_argument("--workers", type=int, nargs="+", default=list(LIMITS_SECONDS))
    parser.add_argument("--repeats", type=int, default=3, help="runs; their median is shown")
    parser.add_argument("--data-dir", default=os.environ.get("DOWNPOUR_DATA"))
    options = parser.parse_args()
    show(measure(options), as_json=options.json)


if __name__ == "__main__":
    main()
