"""Eight bits per number, and a scale per block.

Block-wise quantization (Dettmers et al. 2022, https://arxiv.org/abs/2110.02861, section 2.1) with
its block of 2,048: one outlier costs precision in its own block only. The code is linear and
symmetric, so that zero stays zero, and the scale is the block's largest magnitude over 127.
INTELLECT-1 (Jaghouar et al. 2024, https://arxiv.org/abs/2412.01152) sends its differences in int8,
too, and keeps no error either: a number loses at most 1/254 of the block's largest.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from downpour.files.compression.base import Bytes, Numbers
from downpour.files.compression.blocks import BlockCodec

_SCALE_BYTES = 4
_LARGEST = 127
# So that the largest code times the scale is finite for every block.
_SCALE_MAX = np.nextafter(np.finfo(np.float32).max / np.float32(_LARGEST), np.float32(0))


class Int8(BlockCodec):
    """A record is the scale (float32), then a signed byte per number."""

    block = 2048
    feedback: ClassVar[None] = None

    def _record_bytes(self, count: int) -> int:
        return _SCALE_BYTES + count

    def _encode_blocks(self, numbers: Numbers) -> Bytes:
        scale = np.abs(numbers).max(axis=1, keepdims=True) / np.float32(_LARGEST)
        scale = np.minimum(scale, _SCALE_MAX).astype("<f4")
        # A block of zeros, or of numbers too small to have a scale, becomes zeros.
        codes = np.rint(numbers / np.where(scale > 0, scale, np.float32(np.inf)))
        signed = np.clip(codes, -_LARGEST, _LARGEST).astype(np.int8)
        return np.concatenate([scale.view(np.uint8), signed.view(np.uint8)], axis=1)

    def _decode_blocks(self, records: Bytes, out: Numbers) -> None:
        scale = records[:, :_SCALE_BYTES].copy().view("<f4")
        np.multiply(records[:, _SCALE_BYTES:].view(np.int8), scale, out=out, dtype=np.float32)


INT8 = Int8()
