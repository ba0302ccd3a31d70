"""Resizes images once, when the manager prepares a dataset."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_BLOCK_PIXELS = 1 << 24


def resized(images: NDArray[np.uint8], size: int) -> NDArray[np.uint8]:
    """Squeeze images [n, h, w, c] into squares of `size` pixels, bilinear and antialiased."""
    from torch import from_numpy
    from torch.nn.functional import interpolate

    count, height, width, channels = images.shape
    result = np.empty((count, size, size, channels), dtype=np.uint8)
    block = max(1, _BLOCK_PIXELS // max(1, height * width * channels))
    for start in range(0, count, block):
        part = from_numpy(images[start : start + block].astype(np.float32)).permute(0, 3, 1, 2)
        smooth = interpolate(part, (size, size), mode="bilinear", antialias=True)
        pixels = smooth.round_().clamp_(0, 255).byte().permute(0, 2, 3, 1)
        result[start : start + block] = pixels.numpy()
    return result
