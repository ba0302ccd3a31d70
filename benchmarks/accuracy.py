"""Does training come out as it should? MNIST with the settings of the ECE751 report.

Each cell is five epochs of the report's network (batch 64, SGD .01, momentum .5), for several
seeds. Finished cells are kept in a folder and not run again, so the half hour it takes may be
interrupted. The number of worker processes does not matter to the result: the bytes of a model
depend on the shards, not on who trains them.
"""

from __future__ import annotations

import argparse
import json
import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from common import Row, command_line, show

import downpour


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One setting, and what is expected of the mean final accuracy in per cent."""

    shards: int
    split: str
    aggregate: Literal["average", "first"]
    expected: str

    @property
    def name(self) -> str:
        """Name the cell's files."""
        return f"{self.shards}-{self.split}-{self.aggregate}"


CELLS = (
    Cell(shards=10, split="random", aggregate="average", expected="at least 94.0"),
    Cell(shards=10, split="equal", aggregate="average", expected="at least 93.9"),
    Cell(shards=10, split="class", aggregate="average", expected="above 60"),
    Cell(shards=10, split="random", aggregate="first", expected="91 to 94"),
    Cell(shards=10, split="class", aggregate="first", expected="9.8"),
    Cell(shards=1, split="random", aggregate="average", expected="at least 98.3"),
)


def accuracies(cell: Cell, seed: int, arguments: argparse.Namespace) -> list[float]:
    """Return the test accuracy in per cent after each epoch, running the cell where it is new."""
    kept = Path(arguments.out) / f"{cell.name}-{arguments.precision}-{seed}.json"
    if not kept.exists():
        spec = downpour.Spec(
            name=f"ece751-{cell.name}",
            dataset="mnist",
            model="mnist-cnn",
            shards=cell.shards,
            split=cell.split,
            aggregate=cell.aggregate,
            batch_size=64,
            learning_rate=0.01,
            momentum=0.5,
            epochs=5,
            seed=seed,
            precision=arguments.precision,
        )
        workers = min(cell.shards, arguments.workers)
        result = downpour.run(spec, workers=workers, shared=Path(arguments.out) / "shared")
        kept.write_text(json.dumps([100 * (epoch.accuracy or 0) for epoch in result.rounds]))
    found: list[float] = json.loads(kept.read_text())
    return found


def measure(cell: Cell, arguments: argparse.Namespace) -> Row:
    """Run what is missing of a cell; returns its accuracies in per cent."""
    runs = [accuracies(cell, seed, arguments) for seed in range(arguments.seeds)]
    last = [run[-1] for run in runs]
    return {
        "shards": cell.shards,
        "split": cell.split,
        "aggregate": cell.aggregate,
        "epoch_1": round(statistics.mean(run[0] for run in runs), 2),
        "epoch_5": round(statistics.mean(last), 2),
        "epoch_5_each": " ".join(f"{value:.2f}" for value in last),
        "expected": cell.expected,
    }


def main() -> None:
    """Run what is missing and print a line a cell."""
    parser = command_line(__doc__)
    parser.add_argument("--out", default="benchmarks/out/accuracy", help="where results are kept")
    parser.add_argument("--seeds", type=int, default=3, help="runs of each cell")
    parser.add_argument("--workers", type=int, default=2, help="worker processes at most")
    parser.add_argument("--precision", default="bfloat16", help="float32 or bfloat16")
    arguments = parser.parse_args()
    Path(arguments.out).mkdir(parents=True, exist_ok=True)
    show([measure(cell, arguments) for cell in CELLS], as_json=arguments.json)


if __name__ == "__main__":
    main()
