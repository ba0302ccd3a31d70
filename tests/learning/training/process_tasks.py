"""Tasks whose training depends on the process that trains them, and one whose does not."""

import datetime as dt
import functools
import os
import time
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import downpour


class Plain(downpour.Task):
    """Depends on the spec alone, although it draws, counts its steps and looks at the clock."""

    steps = 0
    began = time.monotonic()

    def model(self) -> nn.Module:
        return nn.Linear(4, 2)

    def examples(self, part: str) -> Any:
        del part
        generator = torch.Generator().manual_seed(0)
        return [(torch.randn(4, generator=generator), i % 2) for i in range(48)]

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        Plain.steps += 1
        if time.monotonic() - self.began > 1e12 or dt.datetime.now(tz=dt.UTC).year < 2000:
            raise TimeoutError
        noisy = batch[0] + 0.1 * torch.randn(batch[0].shape)
        return nn.functional.cross_entropy(model(noisy), batch[1]) * self.scale()

    def scale(self) -> float:
        """Return a number that should follow from the spec."""
        return 1.0


class Hashes(Plain):
    """Hashes text, which each process does otherwise."""

    def scale(self) -> float:
        return 1 + hash("word") % 997


class Labelled(Plain):
    """Numbers its classes in the order of a set."""

    def labels(self) -> Any:
        """Return classes by name, in any order."""
        names = list({f"class {number}" for number in range(12)})
        return [names.index(f"class {number % 12}") for number in range(48)]


class Ordered(Plain):
    """Builds layers in the order of a set."""

    def model(self) -> nn.Module:
        names = {f"layer {number}" for number in range(12)}
        layers = {name: nn.Linear(4, 4) for name in names}
        return nn.Sequential(*(layers[name] for name in sorted(names)), nn.Linear(4, 2))


class Unseeded(Plain):
    """Draws from a generator that nobody seeded."""

    def __init__(self) -> None:
        self.factor = np.random.default_rng().random()

    def scale(self) -> float:
        return 1 + self.factor


class Numbered(Plain):
    """Depends on the number of the process."""

    def scale(self) -> float:
        return 1 + os.getpid() % 997


class Configured(Plain):
    """Depends on the environment."""

    def scale(self) -> float:
        return float(os.environ.get("LAB_SCALE", "1"))


class Timed(Plain):
    """Depends on the hour."""

    def scale(self) -> float:
        """Return the hours since 1970, but few."""
        return 1 + int(time.time()) // 3600 % 997


class Dated(Plain):
    """Depends on the date."""

    def scale(self) -> float:
        return float(dt.datetime.now(tz=dt.UTC).timetuple().tm_yday)


@functools.cache
def jitter(example: int) -> Tensor:
    """Draw a number once, whichever step needs it first."""
    del example
    return torch.randn(4)


class Noisy(list[Any]):
    """Examples that are augmented at first use."""

    def __getitem__(self, index: Any) -> Any:
        """Return an example and its own noise."""
        x, y = super().__getitem__(index)
        return x + jitter(index), y


class Cached(Plain):
    """Keeps what it drew at first use."""

    def examples(self, part: str) -> Any:
        return Noisy(super().examples(part))


class Counting(Plain):
    """Trains otherwise after some steps of the process."""

    late = 0

    def scale(self) -> float:
        """Return another number after a thousand steps."""
        Counting.late += 1
        return 1.0 if Counting.late <= 1000 else 2.0
