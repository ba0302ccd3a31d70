"""The optimizers of the local loop, and their state as named arrays.

All are torch's fused ones: one call for all parameters, and elementwise, so their result does not
depend on how the work is cut. A state belongs to a shard, not to a worker, so it must survive a
file: every array is named `parameter/what`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from numpy.typing import NDArray
from torch import nn
from torch.optim import Optimizer

from downpour.errors import FileCorrupt
from downpour.spec import Spec
from downpour.training.parameters import Arrays, array_of, copy_into


def _sgd(parameters: list[nn.Parameter], spec: Spec) -> Optimizer:
    optimizer = torch.optim.SGD(
        parameters,
        lr=spec.learning_rate,
        momentum=spec.momentum,
        nesterov=spec.nesterov,
        weight_decay=spec.weight_decay,
        fused=True,
    )
    if spec.momentum:
        # The fused kernel takes buffers for all parameters or for none, and a parameter may get its
        # first gradient late. From zeros the first step is what it is from nothing.
        for parameter in parameters:
            optimizer.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)
    return optimizer


def _adam(parameters: list[nn.Parameter], spec: Spec) -> Optimizer:
    return torch.optim.Adam(parameters, **_adaptive(spec))


def _adamw(parameters: list[nn.Parameter], spec: Spec) -> Optimizer:
    return torch.optim.AdamW(parameters, **_adaptive(spec))


def _adaptive(spec: Spec) -> dict[str, Any]:
    return {
        "lr": spec.learning_rate,
        "betas": spec.betas,
        "eps": spec.epsilon,
        "weight_decay": spec.weight_decay,
        "fused": True,
    }


OPTIMIZERS: dict[str, Callable[[list[nn.Parameter], Spec], Optimizer]] = {
    "sgd": _sgd,
    "adam": _adam,
    "adamw": _adamw,
}


def make_optimizer(model: nn.Module, spec: Spec) -> Optimizer:
    """Return the spec's optimizer over the network's trainable parameters, without state."""
    return OPTIMIZERS[spec.optimizer](list(_trainable(model).values()), spec)


def optimizer_arrays(optimizer: Optimizer, model: nn.Module) -> Arrays:
    """Return copies of an optimizer's state; empty where it has none."""
    return {
        f"{name}/{what}": array_of(value)
        for name, parameter in _trainable(model).items()
        for what, value in optimizer.state.get(parameter, {}).items()
        if value is not None
    }


def load_optimizer(
    optimizer: Optimizer, model: nn.Module, arrays: Mapping[str, NDArray[Any]]
) -> None:
    """Replace an optimizer's state by what `optimizer_arrays` returned.

    Raises:
        FileCorrupt: a name or a shape is not of this network.
    """
    trainable = _trainable(model)
    optimizer.state.clear()
    for full_name, array in arrays.items():
        name, _, what = full_name.rpartition("/")
        parameter = trainable.get(name)
        if parameter is None:
            raise FileCorrupt("optimizer state", f"{full_name} is of another network")
        # Fused kernels walk through memory: a buffer must lie in it as its parameter does.
        counts = what == "step"
        like = torch.zeros((), device=parameter.device) if counts else parameter
        value = torch.empty_like(like, requires_grad=False)
        copy_into(value, array, full_name)
        optimizer.state[parameter][what] = value


def _trainable(model: nn.Module) -> dict[str, nn.Parameter]:
    return {name: value for name, value in model.named_parameters() if value.requires_grad}
