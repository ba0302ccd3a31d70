"""Tasks that go wrong when they are trained, each in a way of its own."""

import sys
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from own_tasks import Plane  # type: ignore[import-not-found]
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


class Leaving(Spoilt):
    """Ends the process where a loss is asked for."""

    def loss(self, model: nn.Module, batch: Any) -> Tensor:  # noqa: ARG002 - as a task's must be
        sys.exit("no more")


class Early(Spoilt):
    """Its evaluation fails, not its training."""

    def metrics(self, model: nn.Module, batch: Any) -> Mapping[str, Any]:
        x, _ = batch
        return {"error": model.accuracy(x)}  # type: ignore[operator]


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
