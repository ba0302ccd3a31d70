"""Tells whether a batch that is trained in parts takes the same step as the whole one.

It does if the loss is a mean over examples, or a sum and a count. It does not if the loss is a mean
over tokens without padding, if it compares examples with each other, or with batch normalization.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from downpour.learning.blame import users_errors
from downpour.learning.tasks.batches import Indices
from downpour.learning.tasks.loaded import LoadedTask
from downpour.learning.training import numerics
from downpour.learning.training.step import add_gradient, batch_parts, settled

_TOLERANCE = {"float32": 1e-3, "bfloat16": 0.1}
"""How much gradients may differ by rounding, as a share of their length."""
_EXAMPLES_MAX = 8


def parts_differ(loaded: LoadedTask, network: nn.Module, indices: Indices) -> str:
    """Compare the gradient of a few examples with that of each alone; returns a line.

    They are no more than a part, because that much fits into memory. The line is empty if the
    gradients agree.
    """
    spec = loaded.spec
    few = indices[: max(2, min(_EXAMPLES_MAX, -(-len(indices) // spec.parts)))]
    if spec.parts == 1 or len(few) < 2:
        return ""
    with _forgetting(loaded, network):
        network.train()
        apart = _difference(loaded, network, few)
        if apart > _TOLERANCE[spec.precision] and _draws(loaded, network, few):
            network.eval()
            apart = _difference(loaded, network, few)
    if apart <= _TOLERANCE[spec.precision]:
        return ""
    field = "accumulate" if spec.accumulate > 1 else "inside.processes"
    return (
        f"{field} = {spec.parts} is not the same step as a whole batch: gradients differ by "
        f"{apart:.2g} of their length; loss() can return (sum, count) if it is no mean of examples"
    )


@contextmanager
def _forgetting(loaded: LoadedTask, network: nn.Module) -> Iterator[None]:
    """Return a context with a step's settings; gradients are forgotten."""
    with numerics.settings(loaded.spec):
        try:
            yield
        finally:
            network.zero_grad()


def _difference(loaded: LoadedTask, network: nn.Module, few: Indices) -> float:
    """Return how far the gradient in parts is from the whole one, as a share of its length."""
    whole = _gradient(loaded, network, few, parts=1)
    try:
        cut = _gradient(loaded, network, few, parts=len(few))
    except users_errors():  # as of batch normalization, which needs two examples
        cut = _gradient(loaded, network, few, parts=2)
    length = whole.norm().item()
    return (whole - cut).norm().item() / length if length else 0.0


def _draws(loaded: LoadedTask, network: nn.Module, few: Indices) -> bool:
    """Whether a gradient follows from the seed, too."""
    one, other = (_gradient(loaded, network, few, parts=1, seed=seed) for seed in (0, 1))
    return not torch.equal(one, other)


def _gradient(
    loaded: LoadedTask, network: nn.Module, few: Indices, *, parts: int, seed: int = 0
) -> Tensor:
    """Return the gradient of a batch that is trained in `parts`, as one vector."""
    spec = loaded.spec
    network.zero_grad()
    randomness = numerics.Randomness(
        spec.seed + seed, spec.device, beyond_torch=spec.trains_own_code
    )
    with randomness.active():
        randomness.begin(0)
        losses = [add_gradient(loaded, network, part) for part in batch_parts(few, parts)]
    settled(losses, network)
    gradients = (value.grad for value in network.parameters() if value.grad is not None)
    return torch.cat([one.to_dense().flatten().double().cpu() for one in gradients])
