"""Steps that need more than the accelerator's memory: activations wait in the host's.

Autograd keeps tensors of the forward pass, and they take most memory of a step. `kept_on_host`
moves them to the host's memory, and brings them back one at a time. Each comes back with the
numbers and the strides that it had, so the backward pass takes the same kernels to the same bytes.
Only copies take time.
"""

from __future__ import annotations

from contextlib import AbstractContextManager

import torch
from torch import Tensor, nn

from downpour.host.memory import free_memory
from downpour.learning.plain_tensors import is_plain

_LEFT_BYTES = 1 << 30
"""The memory that stays free on the host: with less the kernel might kill this process."""

Kept = tuple[Tensor, torch.device]


def kept_on_host(model: nn.Module) -> AbstractContextManager[object]:
    """Return a context for training steps of a network that keep nothing on its device for later.

    Parts of larger tensors, sparse tensors and tensors with gaps stay there, because they could not
    come back exactly as they were. So do parameters and buffers, which are there anyway, and
    tensors that the host has no room for.
    """
    kept_there = (*model.parameters(), *model.buffers())
    own = {one.data_ptr() for one in kept_there if is_plain(one)}

    def away(value: Tensor) -> Kept:
        there = value.device
        if there.type == "cpu" or not is_plain(value):
            return value, there
        if value.storage_offset() or value.data_ptr() in own:
            return value, there
        if value.nbytes + _LEFT_BYTES > free_memory():
            return value, there
        copy = value.to("cpu")
        return (copy if copy.stride() == value.stride() else value), there

    def back(kept: Kept) -> Tensor:
        value, there = kept
        return value.to(there)

    return torch.autograd.graph.saved_tensors_hooks(away, back)
