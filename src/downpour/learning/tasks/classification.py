"""The built-in task: a spec's dataset, model and loss; it takes whole batches by index."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from downpour.core.spec import Spec
from downpour.learning import models
from downpour.learning.datasets import PreparedDataset
from downpour.learning.tasks.feed import Feed
from downpour.learning.tasks.objective import batch_loss, correct
from downpour.learning.tasks.task import Batch, ExampleList, Task


class Classification(Task):
    """Classes, or zeros and ones, are learned from images or numbers.

    Args:
        spec: names network and loss.
        dataset: its prepared examples.
    """

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
