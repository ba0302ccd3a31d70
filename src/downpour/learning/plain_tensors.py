"""Which of a user's tensors we can look at as numbers in memory."""

from __future__ import annotations

import torch
from torch import Tensor


def is_plain(tensor: Tensor) -> bool:
    """Whether a tensor's memory holds its numbers as its type says.

    Users keep others, too: sparse, nested and quantized ones, wrappers of several tensors, views
    whose sign or conjugation torch has yet to apply, and tensors without memory (`meta`). Most of
    torch's ways to look at memory raise errors there.
    """
    if tensor.layout is not torch.strided or tensor.is_nested or tensor.is_quantized:
        return False
    if tensor.is_neg() or tensor.is_conj():
        return False
    try:
        return tensor.numel() == 0 or tensor.data_ptr() != 0
    except RuntimeError:
        return False
