"""The networks that the benchmarks train, as textbooks write them; they import torch alone."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional


class PlainMnist(nn.Module):
    """Table I of the ECE751 report, as a textbook writes it."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 32, 3)
        self.conv2 = nn.Conv2d(32, 64, 3)
        self.dropout1, self.dropout2 = nn.Dropout(0.25), nn.Dropout(0.5)
        self.dense1, self.dense2 = nn.Linear(9216, 128), nn.Linear(128, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits [b, 10] for images [b, 1, 28, 28]."""
        x = functional.relu(self.conv1(x))
        x = functional.max_pool2d(functional.relu(self.conv2(x)), 2)
        x = functional.relu(self.dense1(torch.flatten(self.dropout1(x), 1)))
        output: Tensor = self.dense2(self.dropout2(x))
        return output


class PlainDigits(nn.Module):
    """The digits network, as a textbook writes it."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 16, 3, padding=1)
        self.conv2 = nn.Conv2d(16, 32, 3, padding=1)
        self.dense = nn.Linear(512, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits [b, 10] for images [b, 1, 8, 8]."""
        x = functional.relu(self.conv1(x))
        x = functional.max_pool2d(functional.relu(self.conv2(x)), 2)
        output: Tensor = self.dense(torch.flatten(x, 1))
        return output
