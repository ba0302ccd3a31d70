"""What codecs save, and what they cost: bytes and accuracy of three tasks, in virtual time.

Ten equally fast workers meet five times an epoch (`virtual_training`). All that goes through the
shared directory is counted: what workers write and read, and what the manager writes and reads. A
worker reads of a version what it does not have. The state of optimizers is reset, because where it
is kept, it is written whole. `lost` is the accuracy of the same seeds without codecs minus that
with them, in points, with the standard error of the mean of these differences. DOWNPOUR_DATA names
a folder with MNIST.
"""

from __future__ import annotations

import os
import statistics
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from common import Row, command_line, keep_run, kept_runs, show
from virtual_training import Cost, train

from downpour.core.spec import Spec

Record = dict[str, Any]
_TASKS: Mapping[str, Mapping[str, Any]] = {
    "digits": {"momentum": 0.0, "learning_rate": 0.1, "batch_size": 16, "epochs": 12},
    "mnist-lenet": {
        "dataset": "mnist",
        "train_limit": 10_000,
        "model": "lenet:build",
        "momentum": 0.0,
        "learning_rate": 0.1,
        "epochs": 5,
        "batch_size": 32,
    },
    "mnist-mlp": {
        "dataset": "mnist",
        "train_limit": 10_000,
        "model": "mlp",
        "momentum": 0.0,
        "learning_rate": 0.1,
        "epochs": 5,
        "batch_size": 32,
    },
}
_INT3 = {"compression": "int3", "model_compression": "int3"}
_TERNGRAD = {"compression": "terngrad", "model_compression": "terngrad"}
_SETTINGS: Mapping[str, Mapping[str, Any]] = {
    "none": {},
    "both int3": _INT3,
    "both terngrad": _TERNGRAD,
    **{f"both terngrad, {n} meetings": {**_TERNGRAD, "meet": n} for n in (4, 3, 2)},
}
_WORKERS = 10


def ran(task: str, setting: str, seed: int, data: Path | None) -> Record:
    """Train once."""
    fields = {"meet": 5, "optimizer_state": "reset", **_TASKS[task], **_SETTINGS[setting]}
    spec = Spec.make({**fields, "seed": seed})
    made = train(spec, Cost(step_seconds=(0.02,) * _WORKERS), data, seed=seed)
    last = made.looks[-1]
    return {
        "task": task,
        "setting": setting,
        "seed": seed,
        "accuracy": last.metrics["accuracy"],
        # What workers have written the manager has read.
        "bytes": 2 * made.uploaded_bytes + made.downloaded_bytes + made.published_bytes,
    }


def rows(records: Sequence[Record]) -> list[Row]:
    """Return a row for each task and setting."""
    groups: dict[tuple[str, str], dict[int, Record]] = {}
    for one in records:
        groups.setdefault((one["task"], one["setting"]), {})[one["seed"]] = one
    return [_row(groups[task, "none"], runs) for (task, _), runs in groups.items()]


def _row(plain: Mapping[int, Record], runs: Mapping[int, Record]) -> Row:
    some = next(iter(runs.values()))
    lost = [100 * (plain[seed]["accuracy"] - run["accuracy"]) for seed, run in runs.items()]
    total, less = (sum(run["bytes"] for run in group.values()) for group in (plain, runs))
    return {
        "task": some["task"],
        "setting": some["setting"],
        "MB": less / len(runs) / 1e6,
        "times fewer": total / len(plain) / (less / len(runs)),
        "accuracy": 100 * statistics.mean(run["accuracy"] for run in runs.values()),
        "lost": statistics.mean(lost),
        "error": statistics.stdev(lost) / len(lost) ** 0.5 if len(lost) > 1 else None,
    }


def main() -> None:
    """Make the runs that are missing, and show the table."""
    parser = command_line(__doc__)
    parser.add_argument("--out", type=Path, help="keep the runs in this file, one a line")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--tasks", nargs="+", default=[*_TASKS], choices=[*_TASKS], metavar="TASK")
    options = parser.parse_args()
    os.environ["DOWNPOUR_ALLOW"] = "lenet"
    folder = os.environ.get("DOWNPOUR_DATA")
    data = Path(folder) if folder else None
    sys.path.append(str(Path(__file__).parents[1] / "examples" / "tasks"))
    records = kept_runs(options.out)
    known = {(one["task"], one["setting"], one["seed"]) for one in records}
    for seed in range(options.seeds):
        for task in options.tasks:
            for setting in _SETTINGS:
                if (task, setting, seed) not in known:
                    records.append(ran(task, setting, seed, data))
                    keep_run(options.out, records[-1])
    show(rows([one for one in records if one["task"] in options.tasks]), as_json=options.json)


if __name__ == "__main__":
    main()
