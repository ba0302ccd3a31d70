"""Tasks that go wrong when they are trained, each in a way of its own."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import own_tasks  # type: ignore[import-not-found]
import torch
from own_tasks import Plane
from torch import Tensor, nn
from torch.utils.data import IterableDataset


class Wrapped(nn.Module):
    """A small network, for others to spoil."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(3, 8), nn.Linear(8, 1)

    def forward(self, x: Tensor) -> Tensor:
        height: Tensor = self.last(self.spoilt(torch.tanh(self.first(x))))
        return height

    def spoilt(self, hidden: Tensor) -> Tensor:
        return hidden


class Spoilt(Plane):  # type: ignore[misc]
    """A task with a network of its own."""

    network: type[nn.Module] = Wrapped

    def model(self) -> nn.Module:
        return self.network()


class Restless(Spoilt):
    """Draws from a generator that is never seeded."""

    class network(Wrapped):  # noqa: N801
        """Scales by chance."""

        def __init__(self) -> None:
            super().__init__()
            self.generator = np.random.default_rng()

        def spoilt(self, hidden: Tensor) -> Tensor:
            return hidden * self.generator.random()


class Timed(Spoilt):
    """Depends on the clock."""

    class network(Wrapped):  # noqa: N801
        """Scales by the time."""

        def spoilt(self, hidden: Tensor) -> Tensor:
            return hidden * (time.perf_counter() % 1)


class Counting(Spoilt):
    """Counts its calls where no file holds the count."""

    class network(Wrapped):  # noqa: N801
        """Scales by a count."""

        calls = 0

        def spoilt(self, hidden: Tensor) -> Tensor:
            self.calls += 1
            return hidden / self.calls


class Hiding(Spoilt):
    """Keeps a mean in a buffer that is not persistent."""

    class network(Wrapped):  # noqa: N801
        """Subtracts a running mean."""

        mean: Tensor

        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("mean", torch.zeros(8), persistent=False)

        def spoilt(self, hidden: Tensor) -> Tensor:
            self.mean = 0.5 * self.mean + 0.5 * hidden.detach().mean(dim=0)
            return hidden - self.mean


class Viewing(Spoilt):
    """Views what does not lie in memory as it thinks."""

    class network(Wrapped):  # noqa: N801
        """Views a transposed tensor."""

        def spoilt(self, hidden: Tensor) -> Tensor:
            return hidden.t().view(-1, 8)


class Normal(Spoilt):
    """Normalizes batches, which one example has no variance for."""

    class network(Wrapped):  # noqa: N801
        """Has batch normalization."""

        def __init__(self) -> None:
            super().__init__()
            self.normal = nn.BatchNorm1d(8)

        def spoilt(self, hidden: Tensor) -> Tensor:
            shown: Tensor = self.normal(hidden)
            return shown


class Sparse(Spoilt):
    """Has a sparse buffer."""

    def model(self) -> nn.Module:
        network = Wrapped()
        network.register_buffer("edges", torch.eye(3).to_sparse())
        return network


class Nothing(Spoilt):
    """Its factory forgets to return the network."""

    def model(self) -> Any:
        Wrapped()


class Unnamed(Spoilt):
    """Puts its layers into a list that torch does not look into."""

    def model(self) -> nn.Module:

        class Listed(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.layers = [nn.Linear(3, 1)]

            def forward(self, x: Tensor) -> Tensor:
                shown: Tensor = self.layers[0](x)
                return shown

        return Listed()


class Wide(Spoilt):
    """Compares outputs of another width than the targets."""

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        x, y = batch
        return nn.functional.cross_entropy(model(x), y.squeeze(1).long() % 5 + 1)


class Early(Spoilt):
    """Its evaluation fails, not its training."""

    def metrics(self, model: nn.Module, batch: Any) -> Mapping[str, Any]:
        x, _ = batch
        return {"error": model.accuracy(x)}  # type: ignore[operator]


class FailsLater(Spoilt):
    """Fails in its fourth call."""

    class network(Wrapped):  # noqa: N801
        """Counts in a buffer, so that the count travels."""

        calls: Tensor

        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("calls", torch.zeros((), dtype=torch.int64))

        def spoilt(self, hidden: Tensor) -> Tensor:
            """Fail when it has counted to four."""
            if self.training:
                self.calls += 1
            if int(self.calls) > 3:
                raise RuntimeError("the fourth call")
            return hidden


class Diverges(Spoilt):
    """Its loss grows in each step, and is infinite after many."""

    def rate(self, done: float) -> float:
        return 10 ** (30 * done)


class Elsewhere(Spoilt):
    """Depends on the machine."""

    class network(Wrapped):  # noqa: N801
        """Scales by what another machine has otherwise."""

        def spoilt(self, hidden: Tensor) -> Tensor:
            return hidden * (1 + os.getpid() % 7)


class RareExample(Spoilt):
    """One example in the middle cannot be read."""

    def examples(self, part: str) -> Any:
        """Return points, of which one is damaged."""

        class Damaged(own_tasks.Shaken):  # type: ignore[misc]
            def __getitem__(self, index: int) -> Any:
                if index == 30:
                    raise OSError("cannot read picture 30")
                return self.points[index]

        return Damaged(super().examples(part))


class Growing(Spoilt):
    """Keeps every batch, so its memory grows."""

    kept: list[Any] = []  # noqa: RUF012

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        self.kept.append(batch)
        shown: Tensor = super().loss(model, batch)
        return shown


class Leaving(Spoilt):
    """Ends the process where a loss is asked for."""

    def loss(self, model: nn.Module, batch: Any) -> Tensor:  # noqa: ARG002 - as a task's must be
        sys.exit("no more")


class Interrupting(Spoilt):
    """Raises what Ctrl-C does."""

    def loss(self, model: nn.Module, batch: Any) -> Tensor:  # noqa: ARG002 - as a task's must be
        raise KeyboardInterrupt


class Countless:
    """More examples than any machine has room for their numbers."""

    def __len__(self) -> int:
        return 2**62

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return torch.ones(3), torch.ones(1)


class Boundless(Spoilt):
    """Has too many examples."""

    def examples(self, part: str) -> Any:  # noqa: ARG002 - as a task's must be
        return Countless()


class Measuring(Spoilt):
    """Measures something besides its loss."""

    def metrics(self, model: nn.Module, batch: Any) -> Mapping[str, Any]:
        return {"loss": self.loss(model, batch), **self.measured(model)}

    def measured(self, model: nn.Module) -> Mapping[str, Any]:  # noqa: ARG002 - others need it
        return {}


class Overflowing(Measuring):
    """A number that no float holds."""

    def measured(self, model: nn.Module) -> Mapping[str, Any]:  # noqa: ARG002
        return {"huge": 10**400}


class Meddling(Measuring):
    """Changes the network while it measures."""

    def measured(self, model: nn.Module) -> Mapping[str, Any]:
        next(model.parameters()).add_(1)
        return {}


class Talkative(Measuring):
    """Measures too much."""

    def measured(self, model: nn.Module) -> Mapping[str, Any]:  # noqa: ARG002
        return {f"number {n}": 1.0 for n in range(20_000)}


class Reserved(Spoilt):
    """A buffer with the one name that files have for themselves."""

    def model(self) -> nn.Module:
        model = super().model()
        model.register_buffer("__metadata__", torch.ones(1))
        return model


class Stream(IterableDataset[Any]):
    """Points without an index, which say how many there are."""

    def __iter__(self) -> Iterator[Any]:
        return iter([(np.zeros(2), np.zeros(1))] * 60)

    def __len__(self) -> int:
        return 60


class Streamed(Plane):  # type: ignore[misc]
    """Examples of a stream."""

    def examples(self, part: str) -> Any:
        """Return a stream, as PyTorch has them."""
        del part
        return Stream()


class Overshooting(Spoilt):
    """Its test loss is infinite after the first epoch, and a metric is NaN; its training is not."""

    class network(Wrapped):  # noqa: N801
        """Counts its steps."""

        def __init__(self) -> None:
            super().__init__()
            self.steps: Tensor
            self.register_buffer("steps", torch.zeros(()))

        def spoilt(self, hidden: Tensor) -> Tensor:
            self.steps += self.training
            return hidden

    def metrics(self, model: nn.Module, batch: Any) -> Mapping[str, Any]:
        """Return what is finite for an epoch of four steps."""
        if model.get_buffer("steps") > 4:
            return {"loss": torch.inf, "score": torch.nan}
        return {"loss": self.loss(model, batch), "score": 1.0}
