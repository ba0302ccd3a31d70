"""What a round costs beside the training: milliseconds a round of tasks that train nothing.

Every task loads the model, changes one number of it (`idle.py`), publishes its update and reports
it; the manager folds the updates and publishes the next model. So a round is what Downpour adds to
the training. The raw line writes and fsyncs the same bytes with plain files, one after the other:
what the disk costs whatever coordinates.

Then the tasks of a round end one after the other, and `last_ms` is the time from the last update's
report to the next model. `at_end_ms` is the same with a rule that must know all updates before it
can weigh one (`weighted`), so that all are read in the end.
"""

from __future__ import annotations

import itertools
import os
import statistics
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from common import Row, command_line, folders, show

import downpour
from downpour.files.store import SharedDirectory
from downpour.record.record import read_record
from downpour.record.record_lines import AggregatedLine, UpdatedLine


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One measurement: the numbers of workers, of the network's parameters and of rounds.

    `apart_seconds` is enough to publish an update while no other worker does.
    """

    workers: int
    network: str
    options: dict[str, list[int]]
    rounds: int
    apart_seconds: float = 0.03


CASES = (
    Case(workers=2, network="mnist-cnn", options={}, rounds=60),
    Case(workers=10, network="mnist-cnn", options={}, rounds=40),
    Case(workers=50, network="mnist-cnn", options={}, rounds=20),
    Case(workers=4, network="mlp", options={"hidden": [31_447]}, rounds=12, apart_seconds=0.5),
)
_ROUNDS_APART = 10


def measure(case: Case, where: str, folder: Path) -> Row:
    """Run a case in a folder; returns its median round, and the bare writes of its bytes."""
    result = downpour.run(spec(case), workers=case.workers, shared=folder)
    seconds, size = median_round(folder, result.experiment)
    raw = raw_writes(folder, size, case.workers + 1)
    last, at_end = (from_last_update(case, rule, folder) for rule in ("average", "weighted"))
    return {
        "directory": where,
        "workers": case.workers,
        "model_mb": size / 1e6,
        "round_ms": 1000 * seconds,
        "raw_ms": 1000 * raw,
        "ratio": seconds / raw,
        "last_ms": 1000 * last,
        "at_end_ms": 1000 * at_end,
        "last_ratio": last / at_end,
    }


def spec(case: Case, *, apart_seconds: float = 0.0, rule: str = "average") -> downpour.Spec:
    """Make a spec whose tasks train nothing."""
    options: dict[str, Any] = {"network": case.network, "shards": case.workers}
    return downpour.Spec(
        name="coordination",
        task="idle:Idle",
        task_options={**options, "apart_seconds": apart_seconds, **case.options},
        shards=case.workers,
        epochs=case.rounds,
        batch_size=1,
        momentum=0.0,  # whose buffers belong to the training
        optimizer_state="reset",
        outer=downpour.Outer(optimizer="none"),
        evaluate_every=0,
        aggregate=rule,
    )


def median_round(folder: Path, experiment: str) -> tuple[float, int]:
    """Return the seconds of an experiment's median round, and the bytes of its model."""
    record = SharedDirectory(folder).experiment_path(experiment) / "record.jsonl"
    rounds = [(at, fact) for at, fact in read_record(record) if isinstance(fact, AggregatedLine)]
    times = [at for at, _ in rounds]
    costs = [after - before for before, after in itertools.pairwise(times[2:])]
    return statistics.median(costs), rounds[0][1].bytes


def from_last_update(case: Case, rule: str, folder: Path) -> float:
    """Return the seconds from a round's last update to the next model (median of its rounds)."""
    short = replace(case, rounds=_ROUNDS_APART)
    apart = spec(short, apart_seconds=case.apart_seconds, rule=rule)
    result = downpour.run(apart, workers=case.workers, shared=folder)
    record = SharedDirectory(folder).experiment_path(result.experiment) / "record.jsonl"
    costs, updated_at = [], 0.0
    for at, fact in read_record(record):
        if isinstance(fact, UpdatedLine):
            updated_at = at
        elif isinstance(fact, AggregatedLine):
            costs.append(at - updated_at)
    return statistics.median(costs[2:])


def raw_writes(folder: Path, size_bytes: int, files: int) -> float:
    """Return the seconds that plain writes and fsyncs of a round's bytes take (median of 5)."""
    blob = os.urandom(1 << 20)
    seconds = []
    for turn in range(5):
        began = time.perf_counter()
        for number in range(files):
            with (folder / f"raw-{turn}-{number}").open("wb") as file:
                for _ in range(size_bytes >> 20):
                    file.write(blob)
                file.flush()
                os.fsync(file.fileno())
        seconds.append(time.perf_counter() - began)
        for number in range(files):
            (folder / f"raw-{turn}-{number}").unlink()
    return statistics.median(seconds)


def main() -> None:
    """Measure every case on disk and in memory, and print a line for each."""
    parser = command_line(__doc__)
    parser.add_argument("--workers", type=int, nargs="*", help="only cases of these workers")
    options = parser.parse_args()
    downpour.allow("idle")
    rows = []
    for case in CASES:
        if options.workers and case.workers not in options.workers:
            continue
        for where, parent in folders().items():
            with tempfile.TemporaryDirectory(dir=parent) as folder:
                rows.append(measure(case, where, Path(folder)))
    show(rows, as_json=options.json)


if __name__ == "__main__":
    main()
