"""What one shard of five that returns nonsense does to a model, by aggregator.

The digits, five shards in step, and the mean accuracy of some seeds after the last epoch. The last
shard's updates are right, or point the other way and are ten times as long, or are replaced by
normal noise. A run that diverges counts with the accuracy of chance. `aggregation.py` measures the
time of a fold.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from dataclasses import replace
from statistics import fmean
from typing import Any
from unittest.mock import patch

import numpy as np
from common import Row, command_line, show

from downpour import DownpourError, Spec, run
from downpour.cluster.worker.task_runner import _LoadedExperiment as LoadedExperiment
from downpour.files.store import Array
from downpour.files.store.updates import Work
from downpour.launchers import InlineCluster
from downpour.network.rpc.messages import TaskMessage

RULES = ("average", "median", "trimmed-mean(0.2)")
SHARDS = 5
CHANCE = 0.1
RANDOM = np.random.default_rng(0)

Nonsense = Callable[[Array, Array], Array]
"""Makes a tensor of an update from those before and after training."""
KINDS: Mapping[str, Nonsense] = {
    "right": lambda _, after: after,
    "times_minus_10": lambda before, after: before - 10 * (after - before),
    "noise": lambda before, _: before + RANDOM.standard_normal(before.shape, np.float32),
}


def main() -> None:
    """Parse, train with every rule, print."""
    parser = command_line(__doc__)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    rows: list[Row] = []
    for split in ("random", "class"):
        for rule in RULES:
            spec = Spec(aggregate=rule, split=split, epochs=options.epochs, shards=SHARDS)
            found = {
                kind: accuracy(spec, nonsense, options.seeds) for kind, nonsense in KINDS.items()
            }
            rows.append({"split": split, "rule": rule, **found})
    show(rows, as_json=options.json)


def accuracy(spec: Spec, nonsense: Nonsense, seeds: int) -> float:
    """Return the mean accuracy after the last epoch."""

    def spoiled(loaded: LoadedExperiment, task: TaskMessage, begun: Any) -> Work:
        made = work_of(loaded, task, begun)
        if task.id.shard != SHARDS - 1:
            return made
        before = loaded.models.read(task.model, task.leading, task.whole).tensors
        arrays = {name: nonsense(before[name], after) for name, after in made.parameters.items()}
        return replace(made, parameters=arrays)

    work_of = LoadedExperiment.work_of
    with patch.object(LoadedExperiment, "work_of", spoiled):
        return fmean(trained(spec.replace(seed=seed)) for seed in range(seeds))


def trained(spec: Spec) -> float:
    """Return the accuracy of one run."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            return run(spec, workers=1, on=InlineCluster, shared=folder).epochs[-1].accuracy or 0.0
        except DownpourError:
            return CHANCE


if __name__ == "__main__":
    main()
