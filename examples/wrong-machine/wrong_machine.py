"""A network that makes one worker of a run wrong, to see how an audit finds it.

In the process of `worker-2`, each training step after the first hundred flips one bit of a weight,
as bad memory may. Its losses look fine, and so does the model's accuracy.
"""

import torch
from setproctitle import getproctitle
from torch import Tensor, nn

WORKER = "worker-2"
STEPS_RIGHT = 100
BIT = 12


class Network(nn.Module):
    """A small perceptron for the digits."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
        self.is_wrong = getproctitle().endswith(WORKER)
        self.steps = 0

    def forward(self, images: Tensor) -> Tensor:
        """Return the scores of ten classes for images of 8 x 8 pixels."""
        scores: Tensor = self.layers(images)
        self.steps += self.training
        if self.training and self.is_wrong and self.steps > STEPS_RIGHT:
            flip_bit(self.layers[3].bias)
        return scores


def flip_bit(values: Tensor) -> None:
    """Flip a bit in the middle of the first number's mantissa."""
    with torch.no_grad():
        values.view(torch.int32)[0] ^= 1 << BIT
