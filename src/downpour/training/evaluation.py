"""How good a network is on the test examples; changes nothing of it."""

from __future__ import annotations

import math
import time

import torch
from torch import Tensor, nn

from downpour.datasets import PreparedDataset
from downpour.errors import NonFinite
from downpour.spec import Spec
from downpour.training import numerics
from downpour.training.feed import Feed
from downpour.training.objective import batch_loss, correct
from downpour.values import Evaluation

_BLOCK_VALUES = 1 << 18
_BLOCK_SAMPLES_MAX = 512


def evaluate(model: nn.Module, spec: Spec, dataset: PreparedDataset) -> Evaluation:
    """Measure a network on the whole test set, in the spec's precision.

    With binary cross-entropy a logit above 0 is a yes; where targets are not classes, accuracy is
    the share of right yeses and noes, and there is no accuracy by class.

    Raises:
        NonFinite: the loss is NaN or infinite.
        OutOfMemory: memory did not suffice.
    """
    started = time.perf_counter()
    classes = dataset.facts.classes
    feed = Feed(dataset, dataset.test, spec)
    counts, hits = torch.zeros(classes), torch.zeros(classes)
    loss_sum, right, judged = 0.0, 0, 0
    was_training = model.training
    numerics.place(model, spec, images=dataset.images)
    model.eval()
    try:
        with numerics.settings(spec), torch.inference_mode():
            block = _block_samples(dataset)
            for start in range(0, len(feed), block):
                x, targets = feed.block(start, min(start + block, len(feed)))
                with numerics.precision(spec):
                    output = model(x)
                loss_sum += batch_loss(output, targets, spec).item() * len(x)
                hit = correct(output, targets, spec)
                right += int(hit.sum())
                judged += hit.numel()
                if classes:
                    counts += _by_class(targets, classes)
                    hits += _by_class(targets[hit], classes)
    finally:
        model.train(was_training)
    if not math.isfinite(loss_sum):
        raise NonFinite("the loss on the test examples is NaN or infinite")
    return Evaluation(
        accuracy=right / judged,
        loss=loss_sum / len(feed),
        class_accuracy=tuple((hits.double() / counts.double()).tolist()),
        samples=len(feed),
        seconds=time.perf_counter() - started,
    )


def _by_class(targets: Tensor, classes: int) -> Tensor:
    return torch.bincount(targets, minlength=classes).cpu()


def _block_samples(dataset: PreparedDataset) -> int:
    values = math.prod(dataset.facts.sample_shape)
    return max(1, min(_BLOCK_SAMPLES_MAX, _BLOCK_VALUES // values))
