"""The parts of a user's training: the class that a spec's `task` names, and its defaults.

Three methods are needed: `model`, `examples` and `loss`. The loop around them is Downpour's, so a
task can stop after any step and go on elsewhere with the same bytes. That holds because its state
is enumerable: parameters, buffers, the optimizer's state and the position. Everything else must
be a function of the position, which is why all global generators are seeded before every step.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional
from torch.utils._pytree import tree_map

from downpour.core.spec import Spec
from downpour.learning.blame import users_errors
from downpour.learning.plain_tensors import is_plain

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer


Batch = Any
"""The result of `collate`: tensors, in any tuple, list or dictionary."""


class ExampleList(Protocol):
    """Examples by index: a torch dataset, a memory map, a list."""

    def __len__(self) -> int:
        """Return how many there are."""

    def __getitem__(self, index: int, /) -> Any:
        """Return one of them."""


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


def batch_loss(output: Tensor, targets: Tensor, spec: Spec) -> Tensor:
    """Return the mean loss of a batch.

    Args:
        output: [b, classes]; with binary cross-entropy logits [b], [b, 1] or [b, k].
        targets: class numbers [b], or zeros and ones [b, k].
        spec: names the loss.
    """
    if spec.loss == "cross_entropy":
        return functional.cross_entropy(output.float(), targets)
    logits = output.float().reshape(targets.shape)
    return functional.binary_cross_entropy_with_logits(logits, targets.float())


def correct(output: Tensor, targets: Tensor, spec: Spec) -> Tensor:
    """Return which outputs are correct, as booleans in the targets' shape; a logit above 0 is 1."""
    if spec.loss == "cross_entropy":
        return output.argmax(dim=1) == targets
    return (output.reshape(targets.shape) > 0) == (targets > 0)


Indices = NDArray[np.int64]


def batch_of(task: Task, examples: ExampleList, part: str, indices: Indices, device: str) -> Batch:
    """Collate the examples of some indices [b] of a part, in their order, on the device."""
    return on_device(task.collate(read(examples, part, indices.tolist())), device)


def read(examples: ExampleList, part: str, numbers: list[int]) -> Any:
    """Read examples of a part; an error of the user's has a note that tells which of them fails."""
    whole = getattr(examples, "__getitems__", None)
    chosen: list[Any] = []
    try:
        if whole is not None:
            return whole(numbers)
        for number in numbers:
            chosen.append(examples[number])  # noqa: PERF401 - its length tells which one fails
    except users_errors() as error:
        failing = f"example {numbers[len(chosen)]}" if whole is None else _failing(whole, numbers)
        error.add_note(f'{failing} of "{part}"')
        raise
    return chosen


def _failing(whole: Callable[[list[int]], Any], numbers: list[int]) -> str:
    """Return which of some examples cannot be read alone; their bounds if all of them can."""
    for number in numbers:
        try:
            whole([number])
        except users_errors():
            return f"example {number}"
    return f"one of examples {min(numbers)} to {max(numbers)}"


def on_device(batch: Batch, device: str) -> Batch:
    """Return a batch with all its tensors on the device."""
    if device == "cpu":
        return batch
    return tree_map(lambda leaf: moved(leaf, device), batch, is_leaf=_moves_itself)


def _moves_itself(leaf: Any) -> bool:
    """Whether it has a `to`, such as a tensor, a tokenizer's encoding, or a packed sequence.

    Torch's trees do not enter some of these, and of others they would move too much.
    """
    return hasattr(leaf, "to")


def moved(leaf: Any, device: str) -> Any:
    """Return a part of a batch on the device, from pinned memory where that is faster."""
    if not isinstance(leaf, torch.Tensor):
        return leaf.to(device) if _moves_itself(leaf) else leaf
    there = torch.device(device)
    if leaf.device.type == there.type and there.index in {None, leaf.device.index}:
        return leaf
    if leaf.device.type != "cpu" or there.type != "cuda" or not is_plain(leaf):
        # Only of pinned memory torch promises that it stays until the copy is made.
        return leaf.to(there)
    return leaf.pin_memory().to(there, non_blocking=True)
