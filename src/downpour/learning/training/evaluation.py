"""Evaluates a network on the test examples, without changing it."""

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, SupportsFloat, TypeGuard

import numpy as np
import torch
from torch import Tensor, nn
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from downpour.base.errors import NonFinite
from downpour.base.states import Evaluation
from downpour.base.values import Part
from downpour.learning import numerics
from downpour.learning.tasks import Batch
from downpour.learning.tasks.adapted import Adapted
from downpour.learning.tasks.batches import Indices
from downpour.learning.tasks.loaded import LoadedTask
from downpour.learning.tasks.own import shown, theirs
from downpour.learning.training.loaders import BatchRequest, Loaders

_METRICS_MAX = 1000
"""We add up each one after every batch, send it in messages, and show it in every evaluation."""
_BLOCK_VALUES = 1 << 18
_BLOCK_SAMPLES_MAX = 512
_WIDEST_VALUES = 1 << 26
"""How many values the largest tensor of a block may hold; 256 MiB of float32."""


def evaluate(model: nn.Module, loaded: LoadedTask) -> Evaluation:
    """Measure a network on all test examples, in the spec's precision."""
    found = evaluate_on(model, loaded, np.arange(loaded.count("test")))
    if not math.isfinite(found.loss):
        raise NonFinite("the loss on the test examples is NaN or infinite")
    return found


def evaluate_on(
    model: nn.Module,
    loaded: LoadedTask,
    indices: Indices,
    part: Part = "test",
    loaders: Loaders | None = None,
) -> Evaluation:
    """Measure a network on some test examples, or on training examples as "validation".

    See `evaluate`; but the loss may be NaN or infinite, as it may be for a while in a training.
    Loaders may read batches ahead.
    """
    started = time.perf_counter()
    spec = loaded.spec
    sums = Sums(loaded)
    was_training = model.training
    numerics.place(model, spec, images=loaded.images)
    model.eval()
    try:
        with numerics.settings(spec), torch.no_grad(), numerics.seeded(spec.seed):
            if isinstance(loaded.task, Adapted):
                loaded.task.begin_evaluation(model)
            size = examples_together(model, loaded)
            batches = [indices[start : start + size] for start in range(0, len(indices), size)]
            read = partial(loaded.batch, part)
            if loaders is not None:
                read = partial(loaders.read, examples=part)
                loaders.begin(partial(_requests, batches, part))
            for number, chosen in enumerate(batches):
                if loaders is not None:
                    loaders.reach(number)
                sums.add(_measured(model, loaded, chosen, read), len(chosen))
                model.eval()  # again: a detector's metrics need its training mode for the loss
            if isinstance(loaded.task, Adapted):
                with theirs(spec, "the end of an evaluation fails"):
                    sums.add(loaded.task.end_evaluation(model), 1)
    finally:
        model.train(was_training)
    means = sums.means()
    loss = means.pop("loss")
    by_class = means.pop("class_accuracy", ())
    return Evaluation(
        loss=loss if isinstance(loss, float) else math.nan,
        metrics={name: mean for name, mean in means.items() if isinstance(mean, float)},
        class_accuracy=by_class if isinstance(by_class, tuple) else (),
        samples=len(indices),
        seconds=time.perf_counter() - started,
    )


def _requests(batches: Sequence[Indices], part: str, begin: int) -> Iterator[BatchRequest]:
    # Draws of all batches follow one another, as those of a batch's parts do after the first.
    return (BatchRequest(0, 0, 1, chosen, part) for chosen in batches[begin:])


class Sums:
    """Measurements of a task on some batches, added up by name."""

    def __init__(self, loaded: LoadedTask) -> None:
        self._loaded = loaded
        self._totals: dict[str, tuple[Tensor, Tensor]] = {}

    def add(self, measured: Mapping[str, Any], examples: int) -> None:
        """Add a batch's means, or its pairs of sum and count."""
        for name, value in measured.items():
            if isinstance(value, tuple) and len(value) == 2:
                total, count = (self._number(name, one) for one in value)
            else:  # a mean of a batch counts by the batch's examples
                total, count = self._number(name, value) * examples, torch.tensor(float(examples))
            if name in self._totals:
                total, count = total + self._totals[name][0], count + self._totals[name][1]
            self._totals[name] = total, count

    def means(self) -> dict[str, float | tuple[float, ...]]:
        """Return the means: a number, or one for each class."""
        means = {name: (t / count).tolist() for name, (t, count) in self._totals.items()}
        return {name: tuple(m) if isinstance(m, list) else float(m) for name, m in means.items()}

    def _number(self, name: str, value: object) -> Tensor:
        if isinstance(value, Tensor):
            number = value.detach().cpu().double()
            if number.dim() == 0 or name == "class_accuracy":
                return number
        elif _is_number(value):
            # Such as a whole number that no float64 holds, or an array of text.
            with suppress(OverflowError, TypeError, ValueError):
                return torch.tensor(float(value), dtype=torch.float64)
        kind = f"{list(value.shape)}" if isinstance(value, Tensor) else shown(value)
        accepted = f"metrics() must return numbers, but returned {kind} for {name!r}"
        raise self._loaded.mistake("metrics", accepted)


def _is_number(value: object) -> TypeGuard[SupportsFloat]:
    """Whether a value is a number of Python, numpy or others, or an array without dimensions."""
    is_odd = isinstance(value, bool | np.bool_ | np.complexfloating)
    return isinstance(value, SupportsFloat) and not is_odd and not getattr(value, "ndim", 0)


def _measured(
    model: nn.Module, loaded: LoadedTask, indices: Indices, read: Callable[[Indices], Batch]
) -> Mapping[str, Any]:
    spec, task = loaded.spec, loaded.task
    with theirs(spec, "the evaluation fails"), numerics.precision(spec):
        batch = read(indices)
        measured = task.metrics(model, batch)
        if not (isinstance(measured, Mapping) and all(isinstance(name, str) for name in measured)):
            accepted = f"metrics() must return numbers by name, but returned {shown(measured)}"
            raise loaded.mistake("metrics", accepted)
        if len(measured) > _METRICS_MAX:
            accepted = f"metrics() must return at most {_METRICS_MAX} numbers, not {len(measured)}"
            raise loaded.mistake("metrics", accepted)
        if "loss" in measured:
            return measured
        return {"loss": task.loss(model, batch), **measured}


def examples_together(model: nn.Module, loaded: LoadedTask) -> int:
    """Return how many examples to evaluate together, so that no tensor exceeds the limit.

    The largest tensor is measured on two examples, because no property of a network tells it.
    """
    spec, count = loaded.spec, loaded.count("test")
    if spec.evaluate_batch is not None:
        return spec.evaluate_batch
    if spec.task is not None:
        return spec.batch_size
    values = math.prod(loaded.data.facts.sample_shape)
    block = min(_BLOCK_SAMPLES_MAX, _BLOCK_VALUES // values, count)
    if block <= 2:
        return max(1, block)
    # Without this limit a language model's logits of hundreds of examples took gigabytes.
    with numerics.precision(spec), _Widest() as seen:
        model(loaded.batch("test", np.arange(2))[0])
    widest: int = seen.values
    return max(1, min(block, 2 * _WIDEST_VALUES // widest))


class _Widest(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Observes every operation of torch, and keeps the size of the largest result."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.values: int = 1

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Keep torch from importing its compiler for this, which takes a second."""
        return False

    def __torch_dispatch__(
        self,
        func: OpOverload,
        types: object,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        del types
        result = func(*args, **(kwargs or {}))
        if func.is_view:  # such as a transposed weight, which takes no memory
            return result
        sizes = (value.numel() for value in tree_leaves(result) if isinstance(value, Tensor))
        self.values = max(self.values, *sizes, 1)
        return result
