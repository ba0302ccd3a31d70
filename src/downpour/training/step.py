"""One training step: the batch's loss, its gradient, and what the optimizers make of it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

from downpour.tasks.batches import Indices
from downpour.tasks.loaded import LoadedTask
from downpour.training import numerics
from downpour.training.optimizers import Optimizers


def train_step(
    loaded: LoadedTask, model: nn.Module, optimizers: Optimizers, indices: Indices
) -> Tensor:
    """Take one step on the training examples of some indices [b]; returns their mean loss.

    Raises:
        SpecError: the task's loss cannot be trained on.
    """
    spec = loaded.spec
    if loaded.has_own_step:
        with numerics.precision(spec):
            loss = loaded.task.step(model, optimizers.by_name, loaded.batch("train", indices))
        return _checked(loss, loaded, "step", trained=False).detach()
    optimizers.zero_grad()
    losses: list[Tensor] = []
    for part in _parts(indices, spec.accumulate):
        with numerics.precision(spec):
            loss = loaded.task.loss(model, loaded.batch("train", part))
        loss = _checked(loss, loaded, "loss", trained=True)
        # The mean of a batch is the mean of its parts, each counted by its examples.
        share = len(part) / len(indices)
        (loss if share == 1 else loss * share).backward()  # type: ignore[no-untyped-call]
        losses.append(loss.detach() * share)
    if spec.clip_norm is not None:
        nn.utils.clip_grad_norm_(model.parameters(), spec.clip_norm)
    optimizers.step()
    return torch.stack(losses).sum()


def _parts(indices: Indices, count: int) -> Sequence[Indices]:
    return [indices] if count == 1 else np.array_split(indices, min(count, len(indices)))


def _checked(loss: object, loaded: LoadedTask, method: str, *, trained: bool) -> Tensor:
    """Return a loss if it can be trained on."""
    if not isinstance(loss, Tensor):
        accepted = f"{method}() must return a tensor, and returned {type(loss).__name__}"
    elif loss.dim() or not loss.is_floating_point():
        accepted = (
            f"{method}() must return a scalar, the mean of its batch, and returned "
            f"{loss.dtype} {list(loss.shape)}"
        )
    elif trained and loss.grad_fn is None:  # also one that a task told to require a gradient
        accepted = f"{method}() does not depend on any parameter that is trained"
    else:
        return loss
    raise loaded.mistake(method, accepted)
