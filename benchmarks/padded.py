"""LeNet-5 that takes a fixed time for each training example, as on a small machine of its own.

Hosts that share two cores compete for them. A step here computes for a few milliseconds and waits
for the rest of its time, which costs no processor: many hosts then behave like as many machines.
Every system trains this same module, so all of them have the same steps.
"""

from __future__ import annotations

import os
import socket
import time
from pathlib import Path

import lenet
from torch import Tensor, nn

SECONDS = "LAB_EXAMPLE_SECONDS"
"""The variable that says how long an example takes in training."""
SLOW = "LAB_SLOW_HOST"
"""The variable that names the host on which it takes four times as long."""
NOTES = "LAB_NOTES"
"""The variable that names a folder, where each process notes its steps in a file of its own."""
_SLOWER = 4


def note(word: str) -> None:
    """Write down that something happens now, by this machine's clock, if anybody wants to know."""
    if folder := os.environ.get(NOTES):
        with Path(folder, f"{socket.gethostname()} {os.getpid()}").open("a") as file:
            file.write(f"{time.monotonic():.3f} {word}\n")


class Padded(nn.Module):
    """A network whose forward pass in training waits until its time is over."""

    def __init__(self, network: nn.Module, example_seconds: float) -> None:
        super().__init__()
        self.network = network
        self._example_seconds = example_seconds

    def forward(self, x: Tensor) -> Tensor:
        """Return logits [b, 10] for images [b, 1, 28, 28]."""
        began = time.perf_counter()
        shown: Tensor = self.network(x)
        if self.training:
            left = len(x) * self._example_seconds - (time.perf_counter() - began)
            time.sleep(max(0.0, left))
            note("step")
        return shown


def build(num_classes: int) -> nn.Module:
    """Return the network, as slow as this host should be."""
    seconds = float(os.environ.get(SECONDS, "0"))
    slow = socket.gethostname() == os.environ.get(SLOW)
    return Padded(lenet.build(num_classes), seconds * (_SLOWER if slow else 1))
