"""The parts together: rounds of local training and averaging learn to read digits."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from downpour.core.spec import Spec
from downpour.learning.datasets import open_prepared, prepare
from downpour.learning.models import build, check_fit
from downpour.learning.tasks.loaded import load
from downpour.learning.training.evaluation import evaluate
from downpour.learning.training.loop import LocalTask, ShardTraining
from downpour.learning.training.parameters import load_parameters, parameters_of


def test_four_shards_learn_digits_by_averaging(tmp_path: Path) -> None:
    """More than 95 % after five rounds, as in the first example that users run."""
    spec = Spec.make({"learning_rate": 0.1, "momentum": 0.9, "batch_size": 16})
    dataset = open_prepared(tmp_path, prepare(spec, tmp_path))
    model = build(spec, dataset.facts)
    check_fit(model, spec, dataset.facts)
    version = parameters_of(model)
    for round_ in range(5):
        updates = []
        for shard in range(4):
            load_parameters(model, version)
            indices = np.arange(shard, dataset.facts.train_samples, 4)
            task = LocalTask(indices=indices, round=round_, shard=shard)
            training = ShardTraining(load(spec, dataset), model, task)
            training.advance(training.steps_total)
            updates.append(training.parameters())
        version = {name: np.mean([u[name] for u in updates], axis=0) for name in version}
    load_parameters(model, version)
    assert evaluate(model, load(spec, dataset)).metrics["accuracy"] > 0.95
