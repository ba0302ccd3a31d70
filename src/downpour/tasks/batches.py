"""Some examples of a task → a batch on the device."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils._pytree import tree_map

from downpour.tasks.task import Batch, ExampleList, Task

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
    if hasattr(batch, "to"):  # such as a tokenizer's encoding, which torch's trees do not enter
        return batch.to(device)
    return tree_map(lambda leaf: _moved(leaf, device), batch)


def _moved(leaf: Any, device: str) -> Any:
    if not isinstance(leaf, torch.Tensor) or leaf.device.type == device:
        return leaf
    return leaf.pin_memory().to(device, non_blocking=True)
