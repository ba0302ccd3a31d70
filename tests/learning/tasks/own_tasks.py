"""Tasks as users write them, right and wrong."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.data import IterableDataset

from downpour import Task

EXAMPLES = 60


class Plane(Task):
    """A plane is fitted to points, by a network of which a part is frozen."""

    def __init__(self, width: int = 8) -> None:
        self.width = width

    def model(self) -> nn.Module:
        network = nn.Sequential(
            nn.Linear(3, self.width), nn.Tanh(), nn.Dropout(0.2), nn.Linear(self.width, 1)
        )
        network[0].bias.requires_grad = False
        return network

    def examples(self, part: str) -> list[Any]:
        generator = np.random.default_rng(len(part))
        x = generator.normal(size=(EXAMPLES, 3)).astype(np.float32)
        return list(zip(x, x.sum(axis=1, keepdims=True), strict=True))

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        x, y = batch
        return nn.functional.mse_loss(model(x), y)

    def metrics(self, model: nn.Module, batch: Any) -> Mapping[str, Any]:
        """Return the mean error, as a sum and a count."""
        x, y = batch
        return {"error": ((model(x) - y).abs().sum(), len(y))}


class Tied(Plane):
    """Two layers have the same weights."""

    def model(self) -> nn.Module:
        """Return a network whose last layer is its first."""
        first, last = nn.Linear(3, 3, bias=False), nn.Linear(3, 3, bias=False)
        last.weight = first.weight
        return nn.Sequential(first, nn.Tanh(), last)

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        """Return the mean squared error of the sum."""
        x, y = batch
        return nn.functional.mse_loss(model(x).sum(dim=1, keepdim=True), y)


class Noisy(Plane):
    """Examples are augmented by all three generators' draws."""

    def examples(self, part: str) -> Any:
        return Shaken(super().examples(part))


class Shaken:
    """Moves each point a little, each time."""

    def __init__(self, points: list[Any]) -> None:
        self.points = points

    def __len__(self) -> int:
        return len(self.points)

    def __getitem__(self, index: int) -> Any:
        import random

        x, y = self.points[index]
        draws = random.random() + np.random.random() + torch.rand(()).item()  # noqa: NPY002
        moved = x + 0.1 * draws
        return moved.astype(np.float32), y


class Sided(Plane):
    """Points have a class: which side of a plane they are on."""

    def labels(self) -> list[int]:
        return [int(y[0] > 0) for _, y in self.examples("train")]


class Grouped(Plane):
    """Two groups of parameters, an optimizer and a rate of its own."""

    def groups(self, model: nn.Module) -> list[dict[str, Any]]:
        """Return matrices, which decay, and the rest."""
        named = [value for value in model.parameters() if value.requires_grad]
        return [
            {"params": [value for value in named if value.dim() > 1], "weight_decay": 0.1},
            {"params": [value for value in named if value.dim() < 2], "lr": 0.5},
        ]

    def optimizer(self, groups: list[dict[str, Any]]) -> Optimizer:
        """Return Adadelta, which the spec does not know."""
        return torch.optim.Adadelta(groups, lr=1.0)

    def rate(self, done: float) -> float:
        return 1 - done


class Iterated(Grouped):
    """Groups as torch takes them, too: an iterator, and a parameter alone."""

    def groups(self, model: nn.Module) -> list[dict[str, Any]]:
        """Return the first layer's matrix, and what the last one iterates over."""
        return [{"params": model[0].weight}, {"params": model[3].parameters()}]  # type: ignore[index]


class Shadowed(Grouped):
    """A frozen parameter follows one that is trained, as moving averages do."""

    def step(self, model: nn.Module, optimizers: Mapping[str, Optimizer], batch: Any) -> Tensor:
        loss = self.loss(model, batch)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizers["optimizer"].step()
        with torch.no_grad():
            model[0].bias.add_(model[3].bias)  # type: ignore[index]
        return loss


class Detector(Plane):
    """Its loss exists in training mode alone, and its metrics in the other one."""

    def metrics(self, model: nn.Module, batch: Any) -> Mapping[str, Any]:
        """Change the mode, and leave it so."""
        assert not model.training
        model.train()
        return {"loss": self.loss(model, batch)}


class Halves(Plane):
    """A split at random, drawn from torch's generator where the task is made and in `examples`."""

    def __init__(self) -> None:
        super().__init__()
        self.order = torch.randperm(EXAMPLES).tolist()

    def examples(self, part: str) -> Any:
        """Return one half, as scripts do it."""
        points = [super(Halves, self).examples("train")[index] for index in self.order]
        return torch.utils.data.random_split(points, [0.5, 0.5])[part == "test"]  # type: ignore[arg-type]

    def labels(self) -> list[int]:
        """Return the sides of the same half."""
        return [int(y[0] > 0) for _, y in self.examples("train")]


class Scheduled(Plane):
    """One of torch's schedulers, which would have no effect."""

    def optimizer(self, groups: list[dict[str, Any]]) -> Optimizer:
        optimizer = torch.optim.SGD(groups, lr=0.1)
        self.scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
        return optimizer


class Duel(Plane):
    """Two networks with an optimizer each, and a step of its own."""

    def model(self) -> nn.Module:
        return nn.ModuleDict({"left": nn.Linear(3, 1), "right": nn.Linear(3, 1)})

    def optimizer(self, groups: list[dict[str, Any]]) -> Mapping[str, Optimizer]:
        """Return one for each half of the parameters."""
        (group,) = groups
        first, second = group["params"][:2], group["params"][2:]
        return {"left": torch.optim.Adam(first), "right": torch.optim.SGD(second, lr=0.1)}

    def step(self, model: nn.Module, optimizers: Mapping[str, Optimizer], batch: Any) -> Tensor:
        losses = []
        for name, optimizer in optimizers.items():
            optimizer.zero_grad()
            loss = super().loss(model[name], batch)  # type: ignore[index]
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            losses.append(loss)
        return sum(losses[1:], losses[0])

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        return super().loss(model["left"], batch) + super().loss(model["right"], batch)  # type: ignore[index]

    def metrics(self, model: nn.Module, batch: Any) -> Mapping[str, Any]:
        del model, batch
        return {}


class Several(Plane):
    """The loss of each example."""

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        x, y = batch
        return torch.square(model(x) - y)


class Detached(Plane):
    """The loss without its history."""

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        """Return a tensor that cannot be trained on."""
        return super().loss(model, batch).detach()


class Pretending(Plane):
    """The loss without its history, told to require a gradient."""

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        """Return a tensor that no step changes."""
        return super().loss(model, batch).detach().requires_grad_()


class Endless(Plane):
    """A loss that is NaN."""

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        return super().loss(model, batch) * 0.0 / 0.0


class Failing(Plane):
    """A loss with a mistake in it."""

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        x, y, weights = batch
        loss: Tensor = (nn.functional.mse_loss(model(x), y) * weights).mean()
        return loss


class Ragged(Plane):
    """Examples of several lengths, which the default batch cannot hold: the last one differs."""

    def examples(self, part: str) -> list[Any]:
        """Return points, the last without its height."""
        points = super().examples(part)
        return [*points[:-1], (points[-1][0], np.zeros(2, np.float32))]


class Worded(Plane):
    """A metric that is no number."""

    def metrics(self, model: nn.Module, batch: Any) -> Mapping[str, Any]:
        del model, batch
        return {"grade": "good"}


class Listed(Plane):
    """A metric for each example."""

    def metrics(self, model: nn.Module, batch: Any) -> Mapping[str, Any]:
        x, y = batch
        return {"error": (model(x) - y).abs()}


class Forgetful(Grouped):
    """Groups that leave the biases out."""

    def groups(self, model: nn.Module) -> list[dict[str, Any]]:
        return super().groups(model)[:1]


class Double(Grouped):
    """Groups that name a parameter twice."""

    def groups(self, model: nn.Module) -> list[dict[str, Any]]:
        first, second = super().groups(model)
        return [first, second, first]


class Collecting(torch.optim.SGD):
    """Keeps a set for each parameter."""

    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            for value in group["params"]:
                self.state[value].setdefault("seen", set()).add(1)
        return super().step(closure)


class Remembering(Plane):
    """An optimizer with state that no file can hold."""

    def optimizer(self, groups: list[dict[str, Any]]) -> Optimizer:
        return Collecting(groups, lr=0.1)


class Other:
    """A class that inherits from nothing."""


class Lacking(Task):
    """Has a network and nothing else."""

    def model(self) -> nn.Module:
        return nn.Linear(1, 1)


class Strange(Plane):
    """A loss with other arguments."""

    def loss(self, batch: Any) -> Tensor:  # type: ignore[override]
        del batch
        return torch.zeros(())


class Columns(Plane):
    """All points and all heights, instead of examples."""

    def examples(self, part: str) -> Any:
        points = super().examples(part)
        return np.stack([x for x, _ in points]), np.stack([y for _, y in points])


class Empty(Plane):
    """No test examples."""

    def examples(self, part: str) -> list[Any]:
        return super().examples(part) if part == "train" else []


class Unmade(Plane):
    """Cannot be made."""

    def __init__(self) -> None:
        raise FileNotFoundError("points.csv")


class Mislabeled(Plane):
    """Too few labels."""

    def labels(self) -> list[int]:
        return [0, 1]


class Overlabeled(Plane):
    """Labels of both parts."""

    def labels(self) -> list[int]:
        return [0, 1] * EXAMPLES


class Growing(Plane):
    """Examples that grow while they are used."""

    extra = 0

    def examples(self, part: str) -> list[Any]:
        Growing.extra += 1
        return super().examples(part) + super().examples(part)[: self.extra]


class Indexed(IterableDataset[Any]):
    """A stream with an index, as those of litdata and mosaicml-streaming are."""

    def __init__(self, examples: list[Any]) -> None:
        self._examples = examples

    def __iter__(self) -> Iterator[Any]:
        return iter(self._examples)

    def __len__(self) -> int:
        return len(self._examples)

    def __getitem__(self, index: int) -> Any:
        return self._examples[index]


class Recorded(Plane):
    """Examples of such a stream."""

    def examples(self, part: str) -> Any:
        return Indexed(super().examples(part))


class EndlessAtTheEnd(Plane):
    """A loss that is NaN on the smaller batch with which a shard ends."""

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        """Divide by nothing, where the batch is not whole."""
        return super().loss(model, batch) / float(len(batch[0]) == 16)


class Numbered(Plane):
    """Metrics by number."""

    def metrics(self, model: nn.Module, batch: Any) -> Any:
        del model, batch
        return {1: 1.0}


class Foreign(Plane):
    """Groups with a parameter that no file would hold."""

    def groups(self, model: nn.Module) -> list[dict[str, Any]]:
        mine = [value for value in model.parameters() if value.requires_grad]
        return [{"params": [*mine, nn.Parameter(torch.zeros(3))]}]


class Mistyped(Plane):
    """A group with an option that torch would ignore."""

    def groups(self, model: nn.Module) -> list[dict[str, Any]]:
        mine = [value for value in model.parameters() if value.requires_grad]
        return [{"params": mine, "learning_rate": 0.5}]


class Calling(Plane):
    """An optimizer that calls the loss."""

    def optimizer(self, groups: list[dict[str, Any]]) -> Optimizer:
        return torch.optim.LBFGS(groups)


class UpToTheEnd(Plane):
    """A rate from a table."""

    def rate(self, done: float) -> float:
        """Look it up: `done` is below 1."""
        return [1.0, 0.1][int(2 * done)]


class Shifting(Plane):
    """Examples that are others each time they are read."""

    def examples(self, part: str) -> Any:
        """Return points that follow from the clock."""
        return Drifting(super().examples(part))


class Drifting(Shaken):
    """Moves each point by what the clock says."""

    def __getitem__(self, index: int) -> Any:
        import time

        x, y = self.points[index]
        return x + np.float32(time.perf_counter() % 1), y


def function() -> None:
    """No class."""
