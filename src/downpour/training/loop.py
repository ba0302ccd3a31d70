"""Training on one shard in one round, as a value that advances.

It can stop after any step; its whole state (parameters, buffers, optimizer, generators, position,
loss) can be taken as arrays, and another process of the same numeric class that restores them goes
on with the same bytes as if nothing had happened. It knows nothing of files, messages or time. The
order of examples follows from (seed, epoch, shard); dropout and augmentation draw from generators
seeded by (seed, round, shard), and so does what a factory's network draws from Python or numpy.
After an exception the value must not be used again.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from downpour.datasets import PreparedDataset
from downpour.errors import FileCorrupt, NonFinite
from downpour.spec import Spec
from downpour.training import numerics
from downpour.training.batches import batch_order, samples_in, work_of
from downpour.training.feed import Feed
from downpour.training.objective import batch_loss
from downpour.training.optimizers import load_optimizer, make_optimizer, optimizer_arrays
from downpour.training.parameters import (
    Arrays,
    check_finite,
    infinite_constants,
    load_parameters,
    parameters_of,
)

_RANDOMNESS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalTask:
    """What to train on: a shard's indices of training examples [n], in one round."""

    indices: NDArray[np.integer[Any]]
    round: int
    shard: int


class ShardTraining:
    """One task's training; `model` holds the parameters it starts from, and is trained in place.

    A model serves one task after the other (`load_parameters` sets it to the next one's start),
    but only one at a time.

    Raises:
        SpecError: the spec's batches do not fit the shard.
        FileCorrupt: `optimizer_state` is not of this network, or an index is out of range.
    """

    def __init__(
        self,
        spec: Spec,
        model: nn.Module,
        dataset: PreparedDataset,
        task: LocalTask,
        optimizer_state: Mapping[str, NDArray[Any]] | None = None,
    ) -> None:
        indices = np.asarray(task.indices, dtype=np.int64)
        if len(indices) and not 0 <= indices.min() <= indices.max() < len(dataset.train):
            raise FileCorrupt("indices", f"must be from 0 to {len(dataset.train) - 1}")
        self._spec = spec
        self._task = task
        self._order = torch.from_numpy(
            batch_order(spec, indices, dataset.labels, task.round, task.shard)
        )
        self._feed = Feed(dataset, dataset.train, spec)
        numerics.place(model, spec, images=dataset.images)
        self._model = model
        self._constants = infinite_constants(model)
        self._optimizer = make_optimizer(model, spec)
        if optimizer_state:
            load_optimizer(self._optimizer, model, optimizer_state)
        words = np.random.SeedSequence((_RANDOMNESS, spec.seed, task.round, task.shard))
        self._randomness = numerics.Randomness(
            int(words.generate_state(1, np.uint64)[0]) >> 1,
            spec.device,
            beyond_torch=spec.model_is_factory,
        )
        self._loss_sum = torch.zeros((), dtype=torch.float64, device=spec.device)
        self._steps_done = 0

    @property
    def steps_done(self) -> int:
        """Optimizer steps so far."""
        return self._steps_done

    @property
    def steps_total(self) -> int:
        """Optimizer steps of the whole task: the shard's batches, or `local_steps` if fewer."""
        return work_of(self._spec, len(self._order))[0]

    @property
    def samples(self) -> int:
        """Examples trained on so far."""
        return self._samples_after(self._steps_done)

    @property
    def mean_loss(self) -> float:
        """The mean of the batches' losses so far, weighted by their sizes; 0.0 before any."""
        return float(self._loss_sum.item()) / self.samples if self.samples else 0.0

    def advance(self, max_steps: int) -> None:
        """Train at most `max_steps` further steps; none if the task is done.

        Raises:
            NonFinite: a loss became NaN or infinite.
            OutOfMemory: the machine's or the accelerator's memory did not suffice.
        """
        stop = min(self._steps_done + max_steps, self.steps_total)
        with numerics.settings(self._spec), self._randomness.active():
            self._model.train()
            while self._steps_done < stop:
                self._step()
        # Checked once for many steps: on an accelerator each check waits until all are computed.
        if not math.isfinite(self._loss_sum.item()):
            raise NonFinite(f"the loss became NaN or infinite {self._where()}")

    def _step(self) -> None:
        start, stop = self.samples, self._samples_after(self._steps_done + 1)
        x, targets = self._feed.chosen(self._order[start:stop])
        self._randomness.begin(self._steps_done)
        self._optimizer.zero_grad(set_to_none=True)
        with numerics.precision(self._spec):
            output = self._model(x)
        loss = batch_loss(output, targets, self._spec)
        loss.backward()  # type: ignore[no-untyped-call]
        self._optimizer.step()
        self._loss_sum.add_(loss.detach(), alpha=len(x))
        self._steps_done += 1

    def _samples_after(self, steps: int) -> int:
        return samples_in(steps, len(self._order), self._spec.batch_size)

    def parameters(self, *, copy: bool = True) -> Arrays:
        """Return the parameters and buffers as they are now.

        Without `copy` they hold until the next step only, which suffices to write them to a file.

        Raises:
            NonFinite: one holds NaN or infinity that was trained, or has changed.
        """
        arrays = parameters_of(self._model, copy=copy)
        try:
            check_finite(arrays, self._constants)
        except NonFinite as error:
            raise NonFinite(f"{error} {self._where()}") from None
        return arrays

    def optimizer_state(self) -> Arrays:
        """Return copies of the optimizer's state; empty where it has none."""
        return optimizer_arrays(self._optimizer, self._model)

    def snapshot(self) -> Arrays:
        """Return the whole state as arrays with names of their own, for `restore`."""
        parts: dict[str, Mapping[str, NDArray[Any]]] = {
            "model": parameters_of(self._model),
            "optimizer": self.optimizer_state(),
            "random": self._randomness.arrays(),
            "progress": {
                "task": self._identity(),
                "steps_done": np.array([self._steps_done], dtype=np.int64),
                "loss_sum": np.array([self._loss_sum.item()], dtype=np.float64),
            },
        }
        return {f"{part}/{name}": array for part in parts for name, array in parts[part].items()}

    def restore(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Continue from a snapshot of the same task.

        Raises:
            FileCorrupt: it is no snapshot, or one of another task or network.
        """
        progress = _part("progress", arrays)
        if progress.keys() != {"task", "steps_done", "loss_sum"}:
            raise FileCorrupt("snapshot", "does not say how far it came")
        if not np.array_equal(progress["task"], self._identity()):
            raise FileCorrupt("snapshot", "is of another task")
        load_parameters(self._model, _part("model", arrays))
        load_optimizer(self._optimizer, self._model, _part("optimizer", arrays))
        self._randomness.restore(_part("random", arrays))
        self._steps_done = int(progress["steps_done"][0])
        self._loss_sum.fill_(float(progress["loss_sum"][0]))

    def _where(self) -> str:
        rate = f"learning_rate = {self._spec.learning_rate:g}"
        return f"by step {self._steps_done} of {self.steps_total}, with {rate}"

    def _identity(self) -> NDArray[np.int64]:
        task = self._task
        return np.array([task.round, task.shard, len(self._order)], dtype=np.int64)


def _part(part: str, arrays: Mapping[str, NDArray[Any]]) -> Arrays:
    prefix = f"{part}/"
    return {
        name.removeprefix(prefix): array
        for name, array in arrays.items()
        if name.startswith(prefix)
    }
