"""The parts of a user's training: the class that a spec's `task` names, and its defaults.

Three methods are needed: `model`, `examples` and `loss`. The loop around them is Downpour's, so a
task can stop after any step and go on elsewhere with the same bytes. That holds because its state
is enumerable: parameters, buffers, the optimizer's state and the position. Everything else must
be a function of the position, which is why all global generators are seeded before every step.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

if TYPE_CHECKING:
    from torch import Tensor, nn
    from torch.optim import Optimizer


Batch = Any
"""The result of `collate`: tensors, in any tuple, list or dictionary."""


class ExampleList(Protocol):
    """Examples by index: a torch dataset, a memory map, a list."""

    def __len__(self) -> int:
        """Return how many there are."""

    def __getitem__(self, index: int, /) -> Any:
        """Return one of them."""


@runtime_checkable
class ReadsAhead(Protocol):
    """Examples that fetch what will be read, as those of `downpour.data.Blocks` do."""

    def expect(self, indices: Any, later: Any, /) -> None:
        """Fetch these examples [n] before they are read, in this order.

        After them, it needs the blocks of the examples `later`, in that order.
        """

    def reach(self, place: int, /) -> None:
        """Say that the expected examples before a place have been read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """A step of a training: `step` of `steps` in an epoch, `epoch` of `epochs`, all from 0 on."""

    epoch: int
    epochs: int
    step: int
    steps: int

    @property
    def number(self) -> int:
        """The step's number in the whole training."""
        return self.epoch * self.steps + self.step

    @property
    def total(self) -> int:
        """How many steps the whole training has."""
        return self.epochs * self.steps

    @property
    def done(self) -> float:
        """The share of all steps before this one, in 0..1."""
        return (self.epoch + self.step / self.steps) / self.epochs


class Task:
    """A training that a spec names: `task = "package.module:Class"`.

    The manager and every worker make it as `Class(**task_options)`, so making it should be cheap
    and must depend on the options alone. Methods that are not overridden leave the choice
    to the spec.
    """

    def model(self) -> nn.Module:
        """Return the network, on the CPU; all global generators are seeded by the spec's seed.

        Parameters that require no gradient are frozen: Downpour sends them only once.
        """
        raise NotImplementedError(_unwritten(self, "model"))

    def examples(self, part: str) -> ExampleList:
        """Return the examples of a part, "train" or "test": anything with `len()` and `[i]`.

        Example i must be the same on every machine, except for its draws from the generators of
        Python, numpy and torch: an augmentation repeats with the step. If the object has
        `__getitems__(indices)`, as torch's datasets may, a whole batch is asked for at once.
        """
        raise NotImplementedError(_unwritten(self, "examples"))

    def loss(self, model: nn.Module, batch: Batch) -> Tensor | tuple[Tensor, Any]:
        """Return the mean loss of a batch, a scalar that depends on the parameters.

        If it is a mean over something other than examples, such as tokens, return a pair of the sum
        and the count. Then `accumulate` takes the same step, and the test loss is exact.
        """
        raise NotImplementedError(_unwritten(self, "loss"))

    def collate(self, examples: list[Any]) -> Batch:
        """Return a batch of some examples; by default with torch's `default_collate`."""
        from torch.utils.data import default_collate

        return default_collate(examples)

    def metrics(self, model: nn.Module, batch: Batch) -> Mapping[str, Any]:
        """Return the measurements on a batch of test examples, by name.

        A value is a mean over the batch. If it counts something other than examples, it is a
        pair of a sum and a count. If "loss" is among the names, `loss` is not called as well.
        """
        del model, batch
        return {}

    def predict(self, model: nn.Module, batch: Batch) -> Any:
        """Return what `downpour predict` shows of a batch: a row an example, or several by name.

        By default it is the network's output; of a batch that is a pair, the first is its input.
        """
        return model(batch[0] if isinstance(batch, tuple | list) else batch)

    def labels(self) -> Sequence[int] | None:
        """Return the class of each training example, for `split` and `batches`; None: none."""
        return None

    def groups(self, model: nn.Module) -> list[dict[str, Any]] | None:
        """Return the optimizer's parameter groups, as torch.optim takes them; None: one group.

        Every trainable parameter must be in exactly one.
        """
        del model
        return None

    def optimizer(self, groups: list[dict[str, Any]]) -> Optimizer | Mapping[str, Optimizer] | None:
        """Return an optimizer of these groups, or several by name; None: the spec's.

        Its state may be tensors, numbers and text, and lists or dictionaries of these.
        """
        del groups
        return None

    def rate(self, done: float) -> float | None:
        """Return what the learning rate is multiplied by; None: what the spec's `schedule` says.

        Args:
            done: the share of all steps of the training before this one; 0.0 at the first.
        """
        del done
        return None

    def step(self, model: nn.Module, optimizers: Mapping[str, Optimizer], batch: Batch) -> Tensor:
        """Take a training step and return its loss; only called where a task overrides it.

        An override does everything on its own: gradients to zero, backward, the optimizers' steps.
        A single optimizer is called "optimizer".
        """
        raise NotImplementedError(_unwritten(self, "step"))


def _unwritten(task: Task, method: str) -> str:
    kind = type(task)
    return f"{kind.__module__}:{kind.__qualname__} must define {method}()"


_TOLERANCE = 1e-3


def resemble(one: Sequence[Any], other: Sequence[Any]) -> bool:
    """Say whether two sketches can be of the same example.

    Integers and text must be the same to the bit. Of floats the mean and the mean size count, to a
    thousandth, because decoding and scaling round differently on other processors.
    """
    return len(one) == len(other) and all(map(_alike, one, other))


def _alike(one: list[Any], other: list[Any]) -> bool:
    if one[:2] != other[:2] or one[0] != "float" or one == other:
        return one == other
    (mean, size), (mean_there, size_there) = one[2:], other[2:]
    slack = _TOLERANCE * max(size, size_there)
    return math.isclose(size, size_there, abs_tol=slack) and abs(mean - mean_there) <= slack
