"""What every peer trains and says: the network of the ECE751 report, on some examples of MNIST.

A peer prints a line of JSON for each event; `compared.py` makes its figures of these lines alone.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache

import padded
import torch
from networks import PlainMnist
from torch import Tensor, nn
from torchvision.datasets import MNIST

BATCH = 64
RATE, MOMENTUM = 0.05, 0.5
MEETINGS = 10
TESTED = 2000


@dataclass(slots=True)
class Job:
    """How much to train, or how many rounds of nothing to make; `rank` of `size` processes.

    Of `workers` that are asked for; `large` has rounds of 100 MB in place of 4.8, and `look` an
    accuracy after each epoch, not only after the last. `padded` trains LeNet-5 at a fixed speed.
    """

    examples: int
    epochs: int
    rounds: int
    workers: int = 2
    large: bool = False
    look: bool = False
    padded: bool = False
    seed: int = 0
    rank: int = 0
    size: int = 1
    _began: bool = field(default=False, init=False)
    _epochs_done: int = field(default=0, init=False)

    @classmethod
    def asked_for(cls) -> Job:
        """Return what the command line asks for; every process computes with one thread."""
        parser = argparse.ArgumentParser(description=__doc__)
        parser.add_argument("--examples", type=int, default=6000)
        parser.add_argument("--epochs", type=int, default=2)
        parser.add_argument("--rounds", type=int, default=0, help="only these, without training")
        parser.add_argument("--workers", type=int, default=2)
        parser.add_argument("--large", action="store_true", help="rounds of 100 MB")
        parser.add_argument("--look", action="store_true", help="evaluate after each epoch")
        parser.add_argument("--padded", action="store_true", help="LeNet-5 in steps of fixed time")
        parser.add_argument("--seed", type=int, default=0)
        job = cls(**vars(parser.parse_args()))
        torch.set_num_threads(1)
        torch.manual_seed(job.seed)
        return job

    def network(self) -> nn.Module:
        """Make the network, and say which process has it."""
        say("worker", pid=os.getpid())
        if self.padded:
            return padded.build(10)
        return nn.Linear(5000, 5000) if self.large else PlainMnist()

    def optimizer(self, network: nn.Module) -> torch.optim.Optimizer:
        """Make what changes it."""
        return torch.optim.SGD(network.parameters(), lr=RATE, momentum=MOMENTUM)

    def data(self) -> tuple[Tensor, Tensor]:
        """Return this process's images [n, 1, 28, 28] and labels [n]."""
        return _part(self.rank, self.examples, self.size)

    def first_batch(self) -> None:
        """Say once that a batch was trained."""
        if not self._began:
            self._began = True
            say("first")

    def epoch_ends(self, network: nn.Module) -> None:
        """Say so, and after the last one how good the network is; process 0 alone does."""
        if self.rank:
            return
        say("epoch")
        self._epochs_done += 1
        if self.look or self._epochs_done == self.epochs:
            network.eval()
            x, y = _mnist(slice(TESTED), train=False)
            with torch.no_grad():
                shown = torch.cat([network(some).argmax(1) for some in x.split(BATCH)])
            network.train()
            say("accuracy", accuracy=(shown == y).float().mean().item())
        if self._epochs_done == self.epochs:
            say("end", checksum=checksum(flat(network).numpy().tobytes()))

    def time_rounds(self, make: Callable[[], object]) -> None:
        """Say what a round of nothing takes: the median of all that are asked for but two."""
        seconds = []
        for _ in range(self.rounds):
            began = time.perf_counter()
            make()
            seconds.append(time.perf_counter() - began)
        if self.rounds and self.rank == 0:
            say("rounds", milliseconds=1000 * statistics.median(seconds[2:]))


def say(event: str, **facts: object) -> None:
    """Print an event with the time of the clock."""
    print(json.dumps({"event": event, "at": time.time(), **facts}), flush=True)


def checksum(content: bytes) -> str:
    """Return a short name of a trained network's bytes."""
    return hashlib.sha256(content).hexdigest()[:8]


def flat(network: nn.Module) -> Tensor:
    """Return a copy of all parameters as one row."""
    return nn.utils.parameters_to_vector(network.parameters()).detach()


def set_flat(network: nn.Module, numbers: Tensor) -> None:
    """Set all parameters from one row."""
    nn.utils.vector_to_parameters(numbers, network.parameters())


@cache
def _part(rank: int, end: int, size: int) -> tuple[Tensor, Tensor]:
    """Return every `size`-th example from `rank` to `end`, kept for who is called anew."""
    return _mnist(slice(rank, end, size), train=True)


def _mnist(part: slice, *, train: bool) -> tuple[Tensor, Tensor]:
    """Return a part of the images, and of no others the numbers: all would be 188 MB."""
    found = MNIST(os.environ["DOWNPOUR_DATA"], train=train)
    return (found.data[part, None] / 255 - 0.1307) / 0.3081, found.targets[part]
