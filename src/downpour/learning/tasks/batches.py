"""Batches of a task: examples read, collated and moved, and the built-in task of classes.

Losses are in float32, even for a bfloat16 network. `__init__.py` has no part in this, because a
manager that takes over must not wait for the import of torch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional
from torch.utils._pytree import tree_map
from torch.utils.data import TensorDataset

from downpour.base.names import CPU
from downpour.core.spec import Spec
from downpour.learning import models
from downpour.learning.accelerators import free_bytes, is_plain
from downpour.learning.blame import users_errors
from downpour.learning.datasets import Examples, PreparedDataset
from downpour.learning.tasks import Batch, ExampleList, Task
from downpour.learning.tasks.adapted import CollatedExamples


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
    collate = examples.collate if isinstance(examples, CollatedExamples) else task.collate
    return on_device(collate(read(examples, part, indices.tolist())), device)


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


_SHARE_OF_DEVICE = 8
"""Columns may take one part in eight of a device's free memory, because workers share devices."""


class Columns:
    """Tensors [n, ...] in the host's memory; row i of all of them is example i.

    A batch is gathered at once, on the device if they fit there. To read and stack 128 examples one
    after the other takes half as long as a small network's step. `verify` gets the rows [n] that
    are read from the host's memory, or None for all of them.
    """

    def __init__(
        self, tensors: Sequence[Tensor], verify: Callable[[Indices | None], None] = lambda _: None
    ) -> None:
        self._tensors = tuple(tensors)
        self._verify = verify
        self._copies = cache(self._copied)

    @classmethod
    def of(cls, examples: ExampleList) -> Columns | None:
        """Return the columns of a `TensorDataset`; None for others, and for unusual tensors."""
        if type(examples) is not TensorDataset:
            return None
        tensors = examples.tensors
        is_usual = all(
            type(one) is Tensor
            and is_plain(one)
            and one.device.type == CPU
            and not one.requires_grad
            for one in tensors
        )
        return cls(tensors) if is_usual else None

    def gathered(self, indices: Sequence[int] | NDArray[Any], device: str) -> list[Tensor]:
        """Return rows of all columns [b, ...] on a device, as torch's `default_collate` would."""
        chosen = torch.as_tensor(indices)
        copies = self._copies(device)
        if copies is None:
            self._verify(chosen.numpy())
            return [moved(column.index_select(0, chosen), device) for column in self._tensors]
        there = moved(chosen, device)
        return [column.index_select(0, there) for column in copies]

    def _copied(self, device: str) -> tuple[Tensor, ...] | None:
        """Return the columns on a device; None if they stay in the host's memory."""
        if device == CPU:
            return None
        size = sum(column.nbytes for column in self._tensors)
        if size * _SHARE_OF_DEVICE > free_bytes(device):
            return None
        self._verify(None)
        return tuple(column.to(device) for column in self._tensors)


class Feed:
    """One part of a dataset, which hands out whole batches, normalized, on the spec's device.

    A batch is gathered from mapped memory as bytes, a quarter of the size of floats, and normalized
    by one multiplication and one addition. Images are [b, h, w, c] in memory. Networks get them as
    [b, c, h, w], which is torch's channels_last layout without a copy. The plain layout takes a
    copy. With `flip`, torch's generator mirrors each image with probability 1/2.
    """

    def __init__(
        self, dataset: PreparedDataset, part: Examples, spec: Spec, *, flip: bool = False
    ) -> None:
        columns = [torch.from_numpy(part.x), torch.from_numpy(part.y)]
        self._columns = Columns(columns, part.verify)
        self._count = len(part.x)
        self._images = dataset.images
        self._device = spec.device
        self._channels_last = spec.images_channels_last
        self._flip = flip and self._images
        scale = torch.from_numpy(1 / dataset.std)
        shift = torch.from_numpy(-dataset.mean / dataset.std)
        self._scale: Tensor | float = scale.float().to(self._device)
        self._shift: Tensor | float = shift.float().to(self._device)
        if self._images and scale.numel() == 1:
            self._scale, self._shift = scale.item(), shift.item()

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        """Return the batch of one example."""
        return self.__getitems__([index])

    def __getitems__(self, indices: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Return the batch of some indices [b]: x [b, ...] float32 and their targets."""
        x, targets = self._columns.gathered(indices, self._device)
        if self._flip:
            mirrored = moved(torch.rand(len(x)) < 0.5, self._device)
            x = torch.where(mirrored[:, None, None, None], x.flip(2), x)
        return self._ready(x), targets

    def _ready(self, x: Tensor) -> Tensor:
        x = x.to(torch.float32).mul_(self._scale).add_(self._shift)
        if not self._images:
            return x
        x = x.permute(0, 3, 1, 2)
        # Not `contiguous()`: it leaves the strides of gray images, which tell torch of the layout.
        return x if self._channels_last else x.clone(memory_format=torch.contiguous_format)


class Classification(Task):
    """Classes, or zeros and ones, are learned from images or numbers."""

    def __init__(self, spec: Spec, dataset: PreparedDataset) -> None:
        self._spec = spec
        self._dataset = dataset

    def model(self) -> nn.Module:
        """Return the spec's network for this dataset."""
        return models.build(self._spec, self._dataset.facts)

    def examples(self, part: str) -> ExampleList:
        """Return a feed of batches; training images are mirrored where the spec says so."""
        dataset = self._dataset
        arrays = dataset.test if part == "test" else dataset.train
        return Feed(dataset, arrays, self._spec, flip=part == "train" and self._spec.flip)

    def collate(self, examples: Any) -> Batch:
        """Return the batch as it is: the feed has made it."""
        return examples

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """Return the mean loss of a batch."""
        x, targets = batch
        return batch_loss(model(x), targets, self._spec)

    def metrics(self, model: nn.Module, batch: Batch) -> Mapping[str, Any]:
        """Return loss and accuracy, and the accuracy by class where targets are classes.

        With binary cross-entropy a logit above 0 is a yes; where targets are not classes, accuracy
        is the share of right yeses and noes.
        """
        x, targets = batch
        output = model(x)
        hit = correct(output, targets, self._spec)
        measured = {
            "loss": batch_loss(output, targets, self._spec),
            "accuracy": (hit.sum(), hit.numel()),
        }
        classes = self._dataset.facts.classes
        if classes:
            counts = torch.bincount(targets, minlength=classes)
            hits = torch.bincount(targets[hit], minlength=classes)
            measured["class_accuracy"] = (hits, counts)
        return measured

    def predict(self, model: nn.Module, batch: Batch) -> Mapping[str, Tensor]:
        """Return the class of each example and its probability; without classes each target's."""
        output = model(batch[0]).float()
        if not self._dataset.facts.classes:
            return {"probability": output.sigmoid()}
        if self._spec.loss == "binary_cross_entropy":
            yes = output.flatten().sigmoid()
            return {"class": (yes > 0.5).long(), "probability": torch.maximum(yes, 1 - yes)}
        probability, number = output.softmax(1).max(1)
        return {"class": number, "probability": probability}
