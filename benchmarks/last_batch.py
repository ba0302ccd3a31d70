"""What a short last batch costs: test accuracy by epoch with `last_batch` = "even" and "rest".

LeNet-5 on 10,000 images of MNIST, batches of 64, learning rate 0.05, momentum 0.5, in virtual time.
`left` are the examples that whole batches leave of a shard. The columns of epochs are means of the
seeds, in %. `fall` is the largest distance of an epoch from the best one before it, in points, over
all seeds and from the fifth epoch on. DOWNPOUR_DATA names a folder that has MNIST.
"""

from __future__ import annotations

import os
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path

from common import Row, command_line, show
from virtual_training import Cost, train

from downpour.core.spec import Spec

_EXAMPLES, _BATCH = 10_000, 64
_SHOWN = (3, 6, 9, 14)
_SETTLED = 4


def accuracies(shards: int, last_batch: str, seed: int, data: Path) -> list[float]:
    """Train once; returns the accuracy after each epoch."""
    spec = Spec.make(
        {
            "dataset": "mnist",
            "model": "lenet:build",
            "train_limit": _EXAMPLES,
            "test_limit": 2000,
            "batch_size": _BATCH,
            "last_batch": last_batch,
            "learning_rate": 0.05,
            "momentum": 0.5,
            "epochs": _SHOWN[-1],
            "shards": shards,
            "seed": seed,
        }
    )
    looks = train(spec, Cost(step_seconds=(0.02,) * shards), data, seed=seed).looks
    return [look.metrics["accuracy"] for look in looks]


def row(shards: int, last_batch: str, runs: Sequence[Sequence[float]]) -> Row:
    """Return the row of a table."""
    shown: Row = {"shards": shards, "left": _EXAMPLES // shards % _BATCH, "last_batch": last_batch}
    for epoch in _SHOWN:
        shown[f"{epoch} epochs"] = 100 * statistics.mean(run[epoch - 1] for run in runs)
    falls = [max(run[:n]) - run[n] for run in runs for n in range(_SETTLED, len(run))]
    return {**shown, "fall": 100 * max(falls)}


def main() -> int:
    """Train everything, and show a row for each number of shards and each kind of last batch."""
    parser = command_line(__doc__)
    parser.add_argument("--shards", nargs="+", type=int, default=[2, 4, 8])
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    if "DOWNPOUR_DATA" not in os.environ:
        parser.error("DOWNPOUR_DATA must name a folder that has MNIST")
    os.environ["DOWNPOUR_ALLOW"] = "lenet"
    data = Path(os.environ["DOWNPOUR_DATA"])
    rows = [
        row(shards, kind, [accuracies(shards, kind, seed, data) for seed in range(options.seeds)])
        for shards in options.shards
        for kind in ("even", "rest")
    ]
    show(rows, as_json=options.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
