"""Carries out one task: load the model, train on the shard, publish the update.

Whatever the tasks of an experiment share (its spec, its dataset, the network) is kept between them.
Nothing here knows the manager; a `TaskControl` says how far the task has come and whether it is
still wanted.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from downpour.datasets import PreparedDataset, open_prepared
from downpour.errors import TrainingError
from downpour.models import build
from downpour.rpc.indices import unpack_indices
from downpour.rpc.messages import IndexArray, IndicesFile, Task
from downpour.spec import Spec
from downpour.store import DirectoryStore, SharedDirectory, decode, encode, layout
from downpour.training import LocalTask, ShardTraining, load_parameters
from downpour.values import AttemptId, PublishedFile, Update
from downpour.worker.control import TaskControl

Arrays = dict[str, npt.NDArray[Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Workbench:
    """What the tasks of one experiment share."""

    experiment: str
    spec: Spec
    store: DirectoryStore
    dataset: PreparedDataset
    model: torch.nn.Module


class TaskRunner:
    """Runs tasks one after the other."""

    def __init__(self, shared: SharedDirectory, device: str) -> None:
        self._shared = replace(shared, sleep=self._pause)
        self._sleep = shared.sleep
        self._control: TaskControl | None = None
        self._device = device
        self._bench: _Workbench | None = None

    def run(self, task: Task, control: TaskControl) -> Update:
        """Train a task and publish its update.

        Raises:
            TaskCancelled: the attempt is no longer wanted.
            DownpourError: the spec, a file or the training was wrong.
        """
        began = time.perf_counter()
        self._control = control
        bench = self._workbench(task)
        training = _begin(bench, task)
        control.steps_total = training.steps_total
        loaded = time.perf_counter()
        _train(training, control)
        trained = time.perf_counter()
        file = _publish(bench.store, task.id, training)
        return Update(
            file=file,
            samples=training.samples,
            steps=training.steps_done,
            loss=training.mean_loss,
            load_seconds=loaded - began,
            train_seconds=trained - loaded,
            optimizer_state=_publish_optimizer(bench, task.id, training),
            publish_seconds=time.perf_counter() - trained,
        )

    def _pause(self, seconds: float) -> None:
        """Wait for a file, as long as the attempt that needs it is wanted."""
        if self._control is not None:
            self._control.raise_if_cancelled()
        self._sleep(seconds)

    def _workbench(self, task: Task) -> _Workbench:
        if self._bench is not None and self._bench.experiment == task.id.experiment:
            return self._bench
        self._bench = None
        store = self._shared.store(task.id.experiment)
        spec = Spec.from_toml(bytes(store.read(task.spec)).decode())
        if spec.device == "cuda" and self._device != "cuda":
            raise TrainingError("this worker trains on the cpu; start it with --device cuda")
        torch.set_num_threads(spec.threads)
        open_dataset = partial(open_prepared, self._shared.datasets, task.dataset)
        dataset = self._shared.patience.repeat(open_dataset)
        self._bench = _Workbench(
            experiment=task.id.experiment,
            spec=spec,
            store=store,
            dataset=dataset,
            model=build(spec, dataset.facts),
        )
        return self._bench


def _begin(bench: _Workbench, task: Task) -> ShardTraining:
    load_parameters(bench.model, _tensors(bench.store, task.model))
    state = task.optimizer_state
    return ShardTraining(
        bench.spec,
        bench.model,
        bench.dataset,
        LocalTask(
            indices=_indices(bench.store, task.indices), round=task.id.round, shard=task.id.shard
        ),
        optimizer_state=_tensors(bench.store, state) if state is not None else None,
    )


def _train(training: ShardTraining, control: TaskControl) -> None:
    """Advance a step at a time, so that a cancelled attempt ends soon."""
    while training.steps_done < training.steps_total:
        control.raise_if_cancelled()
        training.advance(1)
        control.steps_done = training.steps_done


def _publish(store: DirectoryStore, attempt: AttemptId, training: ShardTraining) -> PublishedFile:
    name = layout.update_name(attempt.round, attempt.shard, attempt.attempt, secrets.token_hex(3))
    about = {
        "round": str(attempt.round),
        "shard": str(attempt.shard),
        "samples": str(training.samples),
        "loss": repr(training.mean_loss),
    }
    return store.put_new(name, encode(training.parameters(copy=False), about))


def _publish_optimizer(
    bench: _Workbench, attempt: AttemptId, training: ShardTraining
) -> PublishedFile | None:
    if bench.spec.optimizer_state == "reset" or not (state := training.optimizer_state()):
        return None
    token = secrets.token_hex(3)
    name = layout.optimizer_name(attempt.round, attempt.shard, attempt.attempt, token)
    return bench.store.put_new(name, encode(state, {}))


def _tensors(store: DirectoryStore, file: PublishedFile) -> Mapping[str, npt.NDArray[Any]]:
    return decode(store.read(file), file.name).tensors


def _indices(store: DirectoryStore, indices: IndexArray | IndicesFile) -> npt.NDArray[np.int64]:
    if not isinstance(indices, IndicesFile):
        return indices
    data = bytes(store.read(indices.file))
    return unpack_indices(indices.width_bytes, indices.count, data)
