"""The examples of a task, batch by batch, and the built-in task that classifies them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from downpour.core.spec import Spec
from downpour.learning import models
from downpour.learning.datasets import Examples, PreparedDataset
from downpour.learning.tasks.batches import Columns, batch_loss, correct, moved
from downpour.learning.tasks.task import Batch, ExampleList, Task


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
