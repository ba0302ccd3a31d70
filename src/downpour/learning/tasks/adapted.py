"""Tasks made from objects of other libraries: modules of Lightning, and Trainers of transformers.

The names of its classes tell an object's kind. So we never import these libraries, which the user's
module has imported. `lightning_task.py` and `trainer_task.py` read one kind each.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR, ReduceLROnPlateau
from torch.utils.data import (
    DataLoader,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    default_collate,
)

from downpour.base.errors import SpecError
from downpour.learning.blame import with_place
from downpour.learning.tasks import ExampleList, Position, Task

LIGHTNING = {"lightning", "pytorch_lightning"}
_SCHEDULED = ("lr", "momentum", "betas")
"""The options of a group that torch's schedulers change."""


class Adapted(Task):
    """A task made from an object of another library; `name` is the spec's `task`.

    Its `loaders` are the DataLoaders of "train" and "test".
    """

    loaders: dict[str, Any]

    def __init__(self, name: str) -> None:
        self.name = name
        self._scheduled: tuple[nn.Module, Schedule | None] | None = None

    def tell(self, model: nn.Module, position: Position) -> None:
        """Tell the network's object which step comes next."""
        raise NotImplementedError

    def schedule(self, model: nn.Module) -> Schedule | None:
        """Return what a scheduler of the object sets; None if the rate is the spec's."""
        raise NotImplementedError

    def reach(self, model: nn.Module, position: Position) -> list[dict[str, Any]] | None:
        """Go on to a step of the network; returns what a scheduler sets in it, by group."""
        self.tell(model, position)
        if self._scheduled is None or self._scheduled[0] is not model:
            self._scheduled = model, self.schedule(model)
        schedule = self._scheduled[1]
        return None if schedule is None else schedule.at(position)

    def begin_evaluation(self, model: nn.Module) -> None:
        """Prepare for the batches of an evaluation, for each of which `metrics` is called."""
        raise NotImplementedError

    def end_evaluation(self, model: nn.Module) -> Mapping[str, Any]:
        """Return the measurements of all batches together, by name."""
        raise NotImplementedError

    def groups(self, model: nn.Module) -> list[dict[str, Any]]:
        """Return one group of all that is trained; it names the network for `optimizer`."""
        trained = [value for value in model.parameters() if value.requires_grad]
        return [{"params": trained, "network": model}]

    def examples(self, part: str) -> ExampleList:
        """Return the examples by index that a part's DataLoader goes through."""
        loader = self.loaders[part]
        what = "its training data" if part == "train" else "its evaluation data"
        if not isinstance(loader, DataLoader):
            raise self.refusal(f"{what} must be one DataLoader, not a {type(loader).__name__}")
        data = loader.dataset
        if isinstance(data, IterableDataset) or not hasattr(data, "__len__"):
            raise self.refusal(
                f"{what} have no index, because a {type(data).__name__} streams: record it to a "
                "list, or open its files with downpour.data.Blocks"
            )
        if loader.batch_sampler is None:
            raise self.refusal(f"{what} have batch_size=None: let the dataset have single examples")
        if loader.collate_fn is default_collate:
            return data
        return CollatedExamples(data, loader.collate_fn)

    def settings(self) -> dict[str, Any]:
        """Return the fields that the object, by default its loaders, says where a spec does not."""
        for part in ("train", "test"):
            self.examples(part)  # it refuses other objects
        batches = self.loaders["train"].batch_sampler
        sampler = getattr(batches, "sampler", batches)
        if not isinstance(sampler, RandomSampler | SequentialSampler):
            raise self.refusal(
                f"its training data have a {type(sampler).__name__}: Downpour orders the examples "
                'itself; use shuffle=True, and batches = "balanced" for equal classes'
            )
        fields: dict[str, Any] = {"last_batch": "drop" if batches.drop_last else "rest"}
        if isinstance(sampler, SequentialSampler):
            fields["order"] = "given"
        sizes = {"batch_size": batches, "evaluate_batch": self.loaders["test"].batch_sampler}
        return fields | {name: one.batch_size for name, one in sizes.items()}

    def check_scheduler(self, scheduler: Any, where: Any = None) -> None:
        """Refuse a scheduler whose rates do not follow from the position."""
        if isinstance(scheduler, ReduceLROnPlateau):
            raise self.refusal(
                "ReduceLROnPlateau sets the rate by results, but shards train before these are "
                "known: use a schedule of steps or epochs",
                where,
            )

    def refusal(self, said: str, where: Any = None) -> SpecError:
        """Return a refusal, with the line of the user's file if it is known."""
        return SpecError("task", self.name, with_place(said, where))


class CollatedExamples:
    """The examples of a DataLoader that has its own function to make batches."""

    def __init__(self, dataset: Any, collate: Callable[[list[Any]], Any]) -> None:
        self._dataset = dataset
        self.collate = collate

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, index: int) -> Any:
        return self._dataset[index]

    def __getattr__(self, name: str) -> Any:
        if name == "_dataset":  # while a copy is made
            raise AttributeError(name)
        return getattr(self._dataset, name)


def is_adaptable(found: object) -> bool:
    """Whether a module's object is one that becomes a task without being called."""
    return derives(type(found), {"transformers"}, "Trainer")


def derives(kind: type, packages: set[str], name: str) -> bool:
    """Whether a class inherits from one of this name in any of some packages."""
    places = ((one.__module__.partition(".")[0], one.__name__) for one in kind.__mro__)
    return any(package in packages and known == name for package, known in places)


@dataclass(slots=True)
class Schedule:
    """The options of an optimizer's groups at each step, as a scheduler of torch's sets them.

    `make` returns an optimizer that never steps, and its scheduler. The scheduler steps once in
    `every` steps, or in `every` epochs if it `counts_epochs`.
    """

    make: Callable[[], tuple[Optimizer, Any]]
    counts_epochs: bool = False
    every: int = 1
    _steps: int = -1
    _total: int = -1
    _made: tuple[Optimizer, Any] = field(init=False)

    def at(self, position: Position) -> list[dict[str, Any]]:
        """Return each group's options in a step."""
        steps = position.epoch // self.every
        if not self.counts_epochs:
            in_epoch = position.steps // self.every
            steps = position.epoch * in_epoch + position.step // self.every
        if steps < self._steps or self._steps < 0 or position.total != self._total:
            self._made, self._steps, self._total = self.make(), 0, position.total
            vars(self._made[0])["_opt_called"] = True  # or torch warns
        optimizer, scheduler = self._made
        if type(scheduler) is LambdaLR and steps > self._steps:
            scheduler.last_epoch = steps - 1  # its rates follow from the number of steps alone
            self._steps = steps - 1
        for _ in range(steps - self._steps):
            scheduler.step()
        self._steps = steps
        return [
            {name: group[name] for name in _SCHEDULED if name in group}
            for group in optimizer.param_groups
        ]


def released(optimizer: Optimizer) -> Optimizer:
    """Return an optimizer as it was before a scheduler was made for it."""
    vars(optimizer).pop("step", None)  # torch's wrapper, which notes that the optimizer stepped
    for group in optimizer.param_groups:
        group["lr"] = group.pop("initial_lr", group["lr"])
    return optimizer
