"""One training step: the batch's loss, its gradient, and the optimizers' step.

A batch may be cut into parts. The gradient of each is computed alone and added to those before it,
in order. So it is the same to the bit whether this process computes all of it or others help.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import numpy as np
import torch
from torch import Tensor, nn

from downpour.learning.tasks.batches import Indices
from downpour.learning.tasks.loaded import LoadedTask
from downpour.learning.tasks.own import shown
from downpour.learning.training import numerics
from downpour.learning.training.optimizers import Optimizers


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchPart:
    """A part of a batch: its number, the indices of its examples [b], and its share of all."""

    number: int
    indices: Indices
    share: float


class GradientOf(Protocol):
    """Adds a part's gradient to the parameters' own; returns its loss, see `add_gradient`."""

    def __call__(self, part: BatchPart, model: nn.Module | None = None) -> Tensor:
        """Do so with the network, or with a module that stands for it in the task's loss."""


class StepHelp(Protocol):
    """The other processes' share of a step: its gradient, together with this one."""

    def __call__(self, parts: Sequence[BatchPart], add: GradientOf) -> list[Tensor] | None:
        """Add the gradients of all parts, in order, to the parameters' own.

        Returns:
            Each part's loss. None if the caller must compute the whole step on its own; the
            parameters may have some gradients by then.
        """


AloneStep = Callable[[Sequence[BatchPart], Callable[[int], None]], list[Tensor]]
"""Adds the gradients of all parts to the parameters' own, with a function that seeds each; returns
the parts' losses."""


def train_step(
    loaded: LoadedTask,
    model: nn.Module,
    optimizers: Optimizers,
    indices: Indices,
    seed: Callable[[int], None],
    others: StepHelp | None = None,
    alone: AloneStep | None = None,
) -> Tensor:
    """Take one step on the training examples of some indices [b]; returns their loss.

    That is the mean over examples, or the sum and the count [2] if the task counts something else.

    Args:
        loaded: the task.
        model: its network, whose parameters are changed.
        optimizers: what changes them.
        indices: the batch.
        seed: sets the generators for a part of the batch; done for the first. Asked for where other
            processes may compute the part, here or on another machine.
        others: computes the gradient together with other processes.
        alone: computes it in this process, where a part's gradient does not follow from the part.

    Raises:
        SpecError: the task's loss cannot be trained on.
    """
    spec = loaded.spec
    if loaded.has_own_step:
        with numerics.precision(spec):
            loss = loaded.task.step(model, optimizers.by_name, loaded.batch("train", indices))
        return _checked(loss, loaded, "step", trained=False).detach()
    parts = batch_parts(indices, spec.parts)
    add = partial(_seeded_gradient, loaded, model, seed)
    optimizers.zero_grad()
    losses = None
    if others is not None and (losses := others(parts, add)) is None:
        optimizers.zero_grad()
    if losses is None:
        losses = [add(part) for part in parts] if alone is None else alone(parts, seed)
    loss = settled(losses, model)
    if spec.clip_norm is not None:
        nn.utils.clip_grad_norm_(model.parameters(), spec.clip_norm)
    optimizers.step()
    return loss


def settled(losses: Sequence[Tensor], model: nn.Module) -> Tensor:
    """Return a batch's loss from those of its parts; the gradients become those of its mean."""
    if not losses[0].dim():
        return torch.stack(list(losses)).sum()
    whole = torch.stack(list(losses)).sum(0)
    if len(losses) > 1:
        for value in model.parameters():
            if value.grad is not None:
                value.grad.div_(whole[1])
    return whole


def batch_parts(indices: Indices, count: int) -> list[BatchPart]:
    """Cut a batch into nearly equal parts, the longer ones first; no part is empty."""
    size = len(indices)
    cut = [indices] if count == 1 else np.array_split(indices, min(count, size))
    return [
        BatchPart(number=number, indices=part, share=len(part) / size)
        for number, part in enumerate(cut)
    ]


def add_gradient(loaded: LoadedTask, model: nn.Module, part: BatchPart) -> Tensor:
    """Add a part's gradient to the model's, and return its loss.

    That is the part's share of the batch's mean loss. If the task returns a sum and a count, it is
    these [2]. Then the gradient is that of the sum, unless the part is the whole batch.

    Raises:
        SpecError: the task's loss cannot be trained on.
    """
    with numerics.precision(loaded.spec):
        loss = loaded.task.loss(model, loaded.batch("train", part.indices))
    if isinstance(loss, tuple):
        total, count = _checked_pair(loss, loaded)
        (total / count if part.share == 1 else total).backward()  # type: ignore[no-untyped-call]
        return torch.stack([total.detach().to(count.dtype), count])
    loss = _checked(loss, loaded, "loss", trained=True)
    # The mean of a batch is the mean of its parts, each counted by its examples.
    (loss if part.share == 1 else loss * part.share).backward()  # type: ignore[no-untyped-call]
    return loss.detach() * part.share


def _seeded_gradient(
    loaded: LoadedTask,
    network: nn.Module,
    seed: Callable[[int], None],
    part: BatchPart,
    model: nn.Module | None = None,
) -> Tensor:
    # If no other process can compute a part, all draw in a row, as in any loop of a user's.
    if loaded.spec.inside.processes > 1:
        seed(part.number)
    return add_gradient(loaded, network if model is None else model, part)


def _checked_pair(pair: tuple[object, ...], loaded: LoadedTask) -> tuple[Tensor, Tensor]:
    """Return a sum that can be trained on, and what it counts, in the widest type."""
    spec = loaded.spec
    with suppress(TypeError, ValueError, RuntimeError):
        total, number = pair
        wide = numerics.sum_type(spec.device)
        count = torch.as_tensor(number, dtype=wide, device=spec.device).detach()
        if not count.dim():
            return _checked(total, loaded, "loss", trained=True), count
    accepted = (
        "loss() must return a scalar, the mean of its batch, or a pair of a sum and a count, but "
        f"returned {shown(pair)}"
    )
    raise loaded.mistake("loss", accepted)


def _checked(loss: object, loaded: LoadedTask, method: str, *, trained: bool) -> Tensor:
    """Return a loss if it can be trained on."""
    if not isinstance(loss, Tensor):
        accepted = f"{method}() must return a tensor, but returned {type(loss).__name__}"
    elif loss.dim() or not loss.is_floating_point():
        accepted = (
            f"{method}() must return a scalar, the mean of its batch, but returned "
            f"{loss.dtype} {list(loss.shape)}"
        )
    elif trained and loss.grad_fn is None:  # also one that a task told to require a gradient
        accepted = f"{method}() does not depend on any trained parameter"
    else:
        return loss
    raise loaded.mistake(method, accepted)
