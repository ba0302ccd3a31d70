"""Stands for a network in the task's loss if this process computes only its first layers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from downpour.learning.training.layers import Layer


class EntranceDone(BaseException):
    """The first layers have run, and the task's loss is of no use here.

    No Exception, so that no loss of a user's takes it for a failure of the model.
    """


class Entrance(nn.Module):
    """Runs the first layers; `output` is their result.

    Args:
        layers: the first layers.
    """

    def __init__(self, layers: Sequence[Layer]) -> None:
        super().__init__()
        self._layers = layers
        self.output = torch.empty(0)

    def forward(self, x: Tensor) -> Any:
        """Run the layers on what the loss gives to the network.

        Raises:
            EntranceDone: always.
        """
        self.output = run(self._layers, x)
        raise EntranceDone


def run(layers: Sequence[Layer], x: Tensor) -> Any:
    """Run layers one after the other."""
    for layer in layers:
        x = layer.run(x)
    return x
