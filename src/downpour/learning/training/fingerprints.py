"""Short sums of the contents of a network and a training, which we can compare."""

from __future__ import annotations

from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray
from torch import Tensor, nn

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
    return {name: value._version for name, value in network.named_buffers()}  # noqa: SLF001


def frozen_sums(network: nn.Module) -> dict[str, str]:
    """Return checksums of the parameters that require no gradient."""
    parameters = network.named_parameters()
    return {n: _sum(array_of(p, copy=False)) for n, p in parameters if not p.requires_grad}


def aside(network: nn.Module) -> dict[str, str]:
    """Return the state of a network's modules that is in no file, as text by name."""
    state = {}
    for path, module in network.named_modules():
        hidden = {name: module._buffers[name] for name in module._non_persistent_buffers_set}  # noqa: SLF001
        for name, value in {**vars(module), **hidden}.items():
            if isinstance(value, Tensor):
                state[f"{path}.{name}".lstrip(".")] = _sum(array_of(value))
            elif isinstance(value, bool | int | float | str | list | tuple) and name != "training":
                state[f"{path}.{name}".lstrip(".")] = repr(value)[:1000]
    return state
