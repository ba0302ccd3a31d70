"""What the tests of other libraries' objects share: a training in one shard, step by step."""

from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from downpour import Spec
from downpour.core.resolve import resolve
from downpour.learning.auto import trainer_of
from downpour.learning.tasks.agreement import open_data, prepare_data
from downpour.learning.tasks.loaded import LoadedTask, load
from downpour.learning.training.loop import LocalTask, ShardTraining
from downpour.learning.training.trial import check_trains


def spec_of(task: str, **fields: Any) -> Spec:
    """Return the spec of a training in one shard, with what the task says filled in."""
    asked = Spec.make({"task": task, "shards": 1, "device": "cpu", **fields})
    return resolve(asked, 1, trainer_of(asked, 1, apart=False))


def loaded(spec: Spec, folder: Path) -> LoadedTask:
    """Make a spec's task, as a manager and its workers do."""
    return load(spec, open_data(spec, folder, prepare_data(spec, folder)))


def tried(task: LoadedTask) -> None:
    """Try a task as a manager does at submission."""
    check_trains(task, [np.arange(task.count("train"))])


def begun(task: LoadedTask, model: nn.Module, epoch: int, state: Any = None) -> ShardTraining:
    """Begin an epoch of the only shard."""
    shard = LocalTask(indices=np.arange(task.count("train")), round=epoch, shard=0)
    return ShardTraining(task, model, shard, state)


def trained(task: LoadedTask, model: nn.Module) -> list[float]:
    """Train all epochs step by step; returns each step's loss."""
    losses, state = [], None
    for epoch in range(task.spec.epochs):
        training = begun(task, model, epoch, state)
        total = count = 0.0
        while training.steps_done < training.steps_total:
            training.advance(1)
            now = training.snapshot()["progress/loss_sum"]
            seen = now[1] or training.samples
            losses.append(float(now[0] - total) / (seen - count))
            total, count = now[0], seen
        state = training.optimizer_state()
    return losses
