"""Short sums of the contents of a network and a training, which we can compare."""

from __future__ import annotations

import reprlib
from typing import Any

import numpy as np
import torch
import xxhash
from numpy.typing import NDArray
from torch import Tensor, nn

from downpour.learning.plain_tensors import is_plain
from downpour.learning.training.loop import ShardTraining
from downpour.learning.training.parameters import Arrays, array_of


def state_of(training: ShardTraining) -> dict[str, str]:
    """Return what a training would go on from."""
    return sums_of(training.snapshot())


def sums_of(arrays: Arrays, part: str = "") -> dict[str, str]:
    """Return a sum of each array, by the part that it is of and its name."""
    prefix = f"{part}/" if part else ""
    return {f"{prefix}{name}": _sum(array) for name, array in arrays.items()}


def _sum(array: NDArray[Any]) -> str:
    return xxhash.xxh3_128_hexdigest(np.ascontiguousarray(array).data)


def buffer_versions(network: nn.Module) -> dict[str, int]:
    """Return how often each buffer was written, by name."""
    buffers = {name: one for name, one in network.named_buffers() if not one.is_inference()}
    return {name: value._version for name, value in buffers.items()}  # noqa: SLF001


def frozen_sums(network: nn.Module) -> dict[str, str]:
    """Return checksums of the parameters that require no gradient."""
    parameters = network.named_parameters()
    return {n: tensor_sum(p) for n, p in parameters if not p.requires_grad and is_plain(p)}


def aside(network: nn.Module) -> dict[str, str]:
    """Return the state of a network's modules that is in no file, as text by name.

    It only serves to name a cause. So it leaves out what it cannot see, such as a sparse tensor.
    """
    state = {}
    for path, module in network.named_modules():
        hidden = {name: module._buffers[name] for name in module._non_persistent_buffers_set}  # noqa: SLF001
        for name, value in {**vars(module), **hidden}.items():
            if isinstance(value, Tensor) and is_plain(value):
                state[f"{path}.{name}".lstrip(".")] = tensor_sum(value)
            elif isinstance(value, list | tuple):
                state[f"{path}.{name}".lstrip(".")] = f"{len(value)}: {reprlib.repr(value)}"
            elif isinstance(value, bool | int | float | str) and name != "training":
                state[f"{path}.{name}".lstrip(".")] = repr(value)[:1000]
    return state


def tensor_sum(value: Tensor) -> str:
    """Return a sum of a plain tensor's bytes, also of a type that numpy lacks."""
    return _sum(array_of(value.detach().reshape(-1).view(torch.uint8)))
