"""A task that trains nothing, so that a round of it is what Downpour adds to the training.

Its steps return at once, or pass the time of a step without using the processor. So more workers
can be had than there are cores, and only what Downpour does beside the training takes cores.
"""

from __future__ import annotations

import time
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from downpour import Task
from downpour.learning.models import NETWORKS


class Idle(Task):
    """A network of `NETWORKS` for MNIST's images, and steps that add one to one parameter.

    A step takes `step_seconds` times a number between 1 - `spread` and 1 + `spread`, drawn from
    torch's generator, which is seeded by the step's place. With `apart_seconds`, an example takes
    as long times its number, so that tasks of a step each end one after the other.
    """

    def __init__(
        self,
        network: str = "mnist-cnn",
        shards: int = 1,
        steps: int = 1,
        step_seconds: float = 0.0,
        spread: float = 0.0,
        apart_seconds: float = 0.0,
        **options: object,
    ) -> None:
        self._network = network
        self._examples = shards * steps
        self._step_seconds = step_seconds
        self._spread = spread
        self._apart_seconds = apart_seconds
        self._options = options

    def model(self) -> nn.Module:
        """Build the network."""
        build = NETWORKS[self._network]
        return build(sample_shape=(1, 28, 28), num_classes=10, **self._options)

    def examples(self, part: str) -> Tensor:
        """Return as many examples as steps of all shards, which are their numbers."""
        del part
        return torch.arange(self._examples)

    def loss(self, model: nn.Module, batch: Tensor) -> Tensor:
        """Return zero, at once."""
        del model, batch
        return torch.zeros(())

    def step(self, model: nn.Module, optimizers: Mapping[str, object], batch: Tensor) -> Tensor:
        """Change one number, because a training that changes none is refused."""
        del optimizers
        time.sleep(self._apart_seconds * int(batch.max()))
        if self._step_seconds:
            time.sleep(self._step_seconds * (1 + self._spread * (2 * torch.rand(()).item() - 1)))
        with torch.no_grad():
            next(model.parameters()).view(-1)[0] += 1
        return torch.zeros(())
