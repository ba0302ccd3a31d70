"""What do more workers buy? Accuracy by epoch, seconds, steps and bytes, in virtual time.

Each run trains a spec once as the machines of `virtual_training` would, a core for each worker. A
run is added to the file as a line of JSON when it has ended, and those that are there are not run
again. Without names all runs that are missing are made: hours on one core.
"""

from __future__ import annotations

import json
import math
import os
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common import Row, command_line, show
from virtual_training import Cost, Look, Trained, train

from downpour.errors import DownpourError
from downpour.spec import Spec

STEP_SECONDS = 0.024
"""A step of 64 images of the report's network on a quiet core: docs/results/ece751.md."""

_LENET: Mapping[str, Any] = {
    "dataset": "mnist",
    "model": "lenet:build",
    "split": "random",
    "epochs": 5,
    "batch_size": 64,
    "learning_rate": 0.1,
    "momentum": 0.5,
}
_REPORTS: Mapping[str, Any] = {**_LENET, "model": "mnist-cnn"}


def _nesterov(momentum: float, **own: Any) -> Mapping[str, Any]:
    return {"outer": {"optimizer": "nesterov", "momentum": momentum}, **own}


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A run: the fields of its spec, what each worker's step takes, and evaluations an epoch."""

    fields: Mapping[str, Any]
    step_seconds: Sequence[float]
    looks: int = 1


def table() -> dict[str, Run]:
    """Return all runs by name, those that are worth most first."""
    runs: dict[str, Run] = {}

    def add(name: str, shards: int, *, slower: float = 1.0, **own: Any) -> None:
        """Add a run with a worker for each shard, of which the last may be slower."""
        steps = [STEP_SECONDS] * (shards - 1) + [STEP_SECONDS * slower]
        runs[name] = Run(fields={**_LENET, "shards": shards, **own}, step_seconds=steps, looks=2)

    add("one-0.1-0", 1, momentum=0.0)
    add("one-0.1-0.5", 1)
    add("one-0.05-0.5", 1, learning_rate=0.05)
    add("sync-10-0.8", 10, meet=10, **_nesterov(0.8))
    add("sync-10-0.6", 10, meet=10, **_nesterov(0.6))
    add("downpour-10-0.8", 10, meet=10, mode="downpour", **_nesterov(0.8))
    add("downpour-10-0.6", 10, meet=10, mode="downpour", **_nesterov(0.6))
    return runs


def record(name: str, run: Run, seed: int, done: Trained) -> dict[str, Any]:
    """Return what is kept of a run."""
    delays = sorted(done.staleness)
    return {
        "name": name,
        "seed": seed,
        "spec": dict(run.fields),
        "step_seconds": list(run.step_seconds),
        "looks": [_looked(look) for look in done.looks],
        "seconds": round(done.seconds, 3),
        "critical_steps": max(done.steps.values()),
        "uploaded_bytes": done.uploaded_bytes,
        "downloaded_bytes": done.downloaded_bytes,
        "staleness_mean": round(statistics.mean(delays), 3),
        "staleness_p99": delays[math.ceil(0.99 * len(delays)) - 1],
    }


def _looked(look: Look) -> dict[str, Any]:
    return {
        "epochs": round(look.epochs, 3),
        "seconds": round(look.seconds, 3),
        "loss": round(look.loss, 5),
        **{name: round(value, 5) for name, value in look.metrics.items()},
    }


def kept(path: Path) -> list[dict[str, Any]]:
    """Return the runs that a file has."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def make(name: str, seed: int, path: Path, data_dir: Path | None) -> None:
    """Make a run, and add it to the file."""
    run = table()[name]
    spec = Spec.make({"name": "more-workers", "seed": seed, **run.fields})

    def tell(look: Look) -> None:
        print(name, seed, _looked(look), flush=True)

    cost = Cost(step_seconds=tuple(run.step_seconds))
    try:
        done = train(spec, cost, data_dir, looks=run.looks, seed=seed, show=tell)
        line = record(name, run, seed, done)
    except DownpourError as error:
        line = {"name": name, "seed": seed, "spec": dict(run.fields), "error": str(error)}
    with path.open("a") as file:
        file.write(json.dumps(line) + "\n")


def rows(records: Sequence[Mapping[str, Any]]) -> list[Row]:
    """Return a row for each run that has ended."""
    return [
        {
            "run": one["name"],
            "seed": one["seed"],
            "accuracy_percent": 100 * one["looks"][-1].get("accuracy", math.nan),
            "seconds": one["seconds"],
            "critical_steps": one["critical_steps"],
            "uploaded_mb": one["uploaded_bytes"] / 1e6,
            "downloaded_mb": one["downloaded_bytes"] / 1e6,
            "staleness_mean": one["staleness_mean"],
            "staleness_p99": one["staleness_p99"],
        }
        for one in records
        if "error" not in one
    ]


def main() -> None:
    """Make the runs that are missing, and print a line a run."""
    parser = command_line(__doc__)
    parser.add_argument("names", nargs="*", help="runs, each NAME or NAME/SEED; without any: all")
    parser.add_argument("--out", default="benchmarks/out/more-workers.jsonl", help="what is kept")
    arguments = parser.parse_args()
    path = Path(arguments.out)
    path.parent.mkdir(parents=True, exist_ok=True)
    data = os.environ.get("DOWNPOUR_DATA")
    os.environ["DOWNPOUR_ALLOW"] = "lenet"
    there = {(one["name"], one["seed"]) for one in kept(path)}
    for each in arguments.names or table():
        name, _, seed = each.partition("/")
        if (name, int(seed or 0)) not in there:
            make(name, int(seed or 0), path, Path(data) if data else None)
    show(rows(kept(path)), as_json=arguments.json)


if __name__ == "__main__":
    main()
