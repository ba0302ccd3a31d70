"""A task that trains nothing, so that a round of it is what Downpour adds to the training."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from downpour import Task
from downpour.learning.models import NETWORKS


class Idle(Task):
    """A network of `NETWORKS` for MNIST's images, and steps that add one to one parameter."""

    def __init__(self, network: str = "mnist-cnn", shards: int = 1, **options: object) -> None:
        self._network = network
        self._shards = shards
        self._options = options

    def model(self) -> nn.Module:
        """Build the network."""
        build = NETWORKS[self._network]
        return build(sample_shape=(1, 28, 28), num_classes=10, **self._options)

    def examples(self, part: str) -> Tensor:
        """Return as many examples as shards."""
        del part
        return torch.zeros(self._shards)

    def loss(self, model: nn.Module, batch: Tensor) -> Tensor:
        """Return zero, at once."""
        del model, batch
        return torch.zeros(())

    def step(self, model: nn.Module, optimizers: Mapping[str, object], batch: Tensor) -> Tensor:
        """Change one number, because a training that changes none is refused."""
        del optimizers, batch
        with torch.no_grad():
            next(model.parameters()).view(-1)[0] += 1
        return torch.zeros(())
