"""Evaluates a network on the test examples, without changing it."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from downpour.datasets import PreparedDataset
from downpour.errors import NonFinite
from downpour.spec import Spec
from downpour.training import numerics
from downpour.training.feed import Feed
from downpour.training.objective import batch_loss, correct
from downpour.values import Evaluation

_BLOCK_VALUES = 1 << 18
_BLOCK_SAMPLES_MAX = 512
_WIDEST_VALUES = 1 << 26
"""What the largest tensor of a block may hold; 256 MiB of float32."""


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
            block = _block_samples(model, spec, feed, dataset)
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
        loss=loss_sum / len(feed),
        metrics={"accuracy": right / judged},
        class_accuracy=tuple((hits.double() / counts.double()).tolist()),
        samples=len(feed),
        seconds=time.perf_counter() - started,
    )


def _by_class(targets: Tensor, classes: int) -> Tensor:
    return torch.bincount(targets, minlength=classes).cpu()


def _block_samples(model: nn.Module, spec: Spec, feed: Feed, dataset: PreparedDataset) -> int:
    """Return how many examples to evaluate together, so that no tensor exceeds the limit.

    The largest tensor is measured on two examples, because no property of a network tells it.
    """
    values = math.prod(dataset.facts.sample_shape)
    block = min(_BLOCK_SAMPLES_MAX, _BLOCK_VALUES // values, len(feed))
    if block <= 2:
        return max(1, block)
    with numerics.precision(spec), _Widest() as seen:
        model(feed.block(0, 2)[0])
    widest: int = seen.values
    return max(1, min(block, 2 * _WIDEST_VALUES // widest))


class _Widest(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Observes every operation of torch, and keeps the size of the largest result."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.values: int = 1

    def __torch_dispatch__(
        self,
        func: Callable[..., Any],
        types: object,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        del types
        result = func(*args, **(kwargs or {}))
        sizes = (value.numel() for value in tree_leaves(result) if isinstance(value, Tensor))
        self.values = max(self.values, *sizes, 1)
        return result
