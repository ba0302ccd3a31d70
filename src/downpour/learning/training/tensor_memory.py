"""Copies a tensor's memory as it is, with the same strides, overlaps and gaps.

Kernels are chosen by layout, and another kernel may round in another way. So a tensor that crosses
from one process to the next must have the same memory there as here, to the bit and to the stride.
"""

from __future__ import annotations

import torch
from torch import Tensor


def flat(tensor: Tensor) -> Tensor:
    """Return all memory from a tensor's first to its last element, as a tensor [n] over it."""
    if tensor.numel() == 0:
        return tensor.detach().reshape(0)
    steps = zip(tensor.size(), tensor.stride(), strict=True)
    return tensor.detach().as_strided((1 + sum((size - 1) * step for size, step in steps),), (1,))


def laid_out(memory: Tensor, size: tuple[int, ...], stride: tuple[int, ...]) -> Tensor:
    """Return a tensor over such memory [n].

    It is no view to autograd, which would refuse to have one that a function returned changed in
    place.
    """
    empty = torch.empty(0, dtype=memory.dtype)
    return empty.set_(memory.untyped_storage(), memory.storage_offset(), size, stride)


def exact_copy(tensor: Tensor) -> Tensor:
    """Return a copy that lies as the tensor does."""
    return laid_out(flat(tensor).clone(), tuple(tensor.size()), tensor.stride())
