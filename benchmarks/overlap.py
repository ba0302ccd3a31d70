"""How much of the workers' time is waiting, with rounds that overlap and without.

The steps pass their time without a processor (`idle.py`), so each of ten workers has all of one,
and what Downpour does for a round has this machine's cores to itself. `spread` is how far a step's
time varies. Each way runs in turn, `--repetitions` times; a row is the median. Of the workers' time
from the first assignment of the second round to the last update, `waiting` is the share in which a
worker had no task, and `beside` the share in which it had one and did not train: it loaded,
published and reported. `round_ms` is what both cost a worker in a round.
"""

from __future__ import annotations

import statistics
import tempfile
from itertools import product
from pathlib import Path

from common import Row, command_line, show

import downpour
from downpour.files.store import SharedDirectory
from downpour.record.record import read_record
from downpour.record.record_lines import AssignedLine, UpdatedLine
from downpour.record.result import Result

MEETINGS, STEPS = 20, 20


def spec(shards: int, overlap: int, step_seconds: float, spread: float) -> downpour.Spec:
    """Make a spec of one epoch that only passes time; a part of a shard has `STEPS` steps."""
    return downpour.Spec(
        name="overlap",
        task="idle:Idle",
        task_options={
            "shards": shards,
            "steps": MEETINGS * STEPS,
            "step_seconds": step_seconds,
            "spread": spread,
        },
        shards=shards,
        epochs=1,
        meet=MEETINGS,
        overlap=overlap,
        batch_size=1,
        momentum=0.0,  # whose buffers belong to the training
        evaluate_every=0,
    )


Measured = tuple[float, float, float]
"""The shares of time without a task and beside the training, and what a round costs in seconds."""


def measure(result: Result, folder: Path, workers: int) -> Measured:
    """Return what a run's workers did beside training."""
    record = SharedDirectory(folder).experiment_path(result.experiment) / "record.jsonl"
    # Without the first round, in which workers import and load.
    lines = [
        (at, line)
        for at, line in read_record(record)
        if isinstance(line, AssignedLine | UpdatedLine) and line.round
    ]
    whole = workers * (lines[-1][0] - lines[0][0])
    tasks = [task for task in result.tasks if task.round > 1]
    busy = sum(task.completion_seconds for task in tasks)
    beside = busy - sum(task.train_seconds for task in tasks)
    lost = (whole - busy + beside) / workers / (MEETINGS - 1)
    return 1 - busy / whole, beside / whole, lost


def main() -> None:
    """Measure all cases."""
    parser = command_line(__doc__)
    parser.add_argument("--workers", type=int, nargs="+", default=[2, 10])
    parser.add_argument("--step-seconds", type=float, nargs="+", default=[0.02])
    parser.add_argument("--spreads", type=float, nargs="+", default=[0.0, 0.5])
    parser.add_argument("--repetitions", type=int, default=3)
    options = parser.parse_args()
    downpour.allow("idle")
    cases = list(product(options.workers, options.step_seconds, options.spreads, (0, 1)))
    found: dict[tuple[int, float, float, int], list[Measured]] = {case: [] for case in cases}
    for _, case in product(range(options.repetitions), cases):
        workers, step_seconds, spread, overlap = case
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            asked = spec(workers, overlap, step_seconds, spread)
            result = downpour.run(asked, workers=workers, shared=folder, progress=False)
            found[case].append(measure(result, folder, workers))
    rows = [_row(case, measured) for case, measured in found.items()]
    show(rows, as_json=options.json)


def _row(case: tuple[int, float, float, int], measured: list[Measured]) -> Row:
    workers, step_seconds, spread, overlap = case
    waiting, beside, lost = map(statistics.median, zip(*measured, strict=True))
    return {
        "workers": workers,
        "step_ms": 1000 * step_seconds,
        "spread": spread,
        "overlap": overlap,
        "waiting": waiting,
        "beside": beside,
        "round_ms": 1000 * lost,
    }


if __name__ == "__main__":
    main()
