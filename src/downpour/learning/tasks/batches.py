"""Turns some examples of a task into a batch on the device."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils._pytree import tree_map

from downpour.learning.tasks.task import Batch, ExampleList, Task

Indices = NDArray[np.int64]


def batch_of(task: Task, examples: ExampleList, indices: Indices, device: str) -> Batch:
    """Collate the examples of some indices [b], in their order, on the device."""
    numbers = indices.tolist()
    whole = getattr(examples, "__getitems__", None)
    chosen = whole(numbers) if whole is not None else [examples[number] for number in numbers]
    return on_device(task.collate(chosen), device)


def on_device(batch: Batch, device: str) -> Batch:
    """Return a batch with all its tensors on the device."""
    if device == "cpu":
        return batch
    return tree_map(lambda leaf: moved(leaf, device), batch, is_leaf=_moves_itself)


def _moves_itself(leaf: Any) -> bool:
    """Whether it has a `to`, such as a tensor, a tokenizer's encoding, or a packed sequence.

    Torch's trees do not enter some of these, and of others they would move too much.
    """
    return hasattr(leaf, "to")


def moved(leaf: Any, device: str) -> Any:
    """Return a part of a batch on the device, from pinned memory where that is faster."""
    if not isinstance(leaf, torch.Tensor):
        return leaf.to(device) if _moves_itself(leaf) else leaf
    there = torch.device(device)
    if leaf.device.type == there.type and there.index in {None, leaf.device.index}:
        return leaf
    if leaf.device.type != "cpu" or there.type != "cuda":
        # Only of pinned memory torch promises that it stays until the copy is made.
        return leaf.to(there)
    return leaf.pin_memory().to(there, non_blocking=True)
