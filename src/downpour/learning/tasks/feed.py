"""Turns a prepared dataset into batches of tensors, without Python work for single examples.

A batch is gathered from mapped memory as bytes, a quarter of the size of floats, and normalized by
one multiplication and one addition. Images are [b, h, w, c] in memory. Networks get them as
[b, c, h, w], which is torch's channels_last layout without a copy. The plain layout takes a copy.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from downpour.core.spec import Spec
from downpour.learning.datasets import Examples, PreparedDataset
from downpour.learning.tasks.batches import moved


class Feed:
    """One part of a dataset, which hands out whole batches, normalized, on the spec's device.

    Args:
        dataset: what normalizes the examples.
        part: the examples.
        spec: says where batches are needed, and the memory layout of images.
        flip: mirror each image with probability 1/2, by torch's generator.
    """

    def __init__(
        self, dataset: PreparedDataset, part: Examples, spec: Spec, *, flip: bool = False
    ) -> None:
        self._x = torch.from_numpy(part.x)
        self._y = torch.from_numpy(part.y)
        self._images = dataset.images
        self._device = spec.device
        self._channels_last = spec.images_channels_last
        self._flip = flip and self._images
        scale = torch.from_numpy(1 / dataset.std)
        shift = torch.from_numpy(-dataset.mean / dataset.std)
        self._scale: Tensor | float = scale.float().to(self._device)
        self._shift: Tensor | float = shift.float().to(self._device)
        if self._images and scale.numel() == 1:
            self._scale, self._shift = scale.item(), shift.item()

    def __len__(self) -> int:
        return len(self._x)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        """Return the batch of one example."""
        return self.__getitems__([index])

    def __getitems__(self, indices: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Return the batch of some indices [b]: x [b, ...] float32 and their targets."""
        chosen = torch.tensor(indices)
        x = self._x.index_select(0, chosen)
        if self._flip:
            mirrored = torch.rand(len(x)) < 0.5
            x = torch.where(mirrored[:, None, None, None], x.flip(2), x)
        return self._ready(x), self._moved(self._y.index_select(0, chosen))

    def _ready(self, x: Tensor) -> Tensor:
        # Always a copy, because `mul_` must not write into the mapped file's memory.
        x = self._moved(x).to(torch.float32, copy=True).mul_(self._scale).add_(self._shift)
        if not self._images:
            return x
        x = x.permute(0, 3, 1, 2)
        # Not `contiguous()`: it leaves the strides of gray images, which tell torch of the layout.
        return x if self._channels_last else x.clone(memory_format=torch.contiguous_format)

    def _moved(self, values: Tensor) -> Tensor:
        there: Tensor = moved(values, self._device)
        return there
