"""-1, 0 or 1 per number, and a scale per block: five numbers per byte.

TernGrad (Wen et al. 2017, https://arxiv.org/abs/1705.07878) draws which numbers become zero. Here,
the numbers below 0.7 of their block's mean magnitude become zero, and the scale is the mean
magnitude of the others. That is the code of Ternary Weight Networks (Li et al. 2016,
https://arxiv.org/abs/1605.04711), the best such code for normally distributed numbers. So this
codec draws nothing. It keeps the residual and adds it to the next round's numbers (Karimireddy et
al. 2019, https://arxiv.org/abs/1901.09847, algorithm 2). Without the residual, a biased code need
not converge.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from downpour.files.compression.base import Bytes, Numbers
from downpour.files.compression.blocks import BlockCodec

_SCALE_BYTES = 4
_THRESHOLD = 0.7
_DIGITS = 5  # 3 ** 5 = 243 fit a byte
_POWERS = 3 ** np.arange(_DIGITS, dtype=np.int64)


def _table() -> Numbers:
    """Return [256, 5]: the numbers of each byte, NaN for bytes that are never written."""
    table = (np.arange(256)[:, None] // _POWERS % 3 - 1).astype(np.float32)
    table[3**_DIGITS :] = np.nan
    return table


_NUMBERS = _table()


class Ternary(BlockCodec):
    """A record is the scale (float32), then the digits, the lowest first."""

    block = 2048
    feedback: ClassVar[float] = 1.0

    def _record_bytes(self, count: int) -> int:
        return _SCALE_BYTES - (-count // _DIGITS)

    def _encode_blocks(self, numbers: Numbers) -> Bytes:
        magnitudes = np.abs(numbers).astype(np.float64)
        cut = _THRESHOLD * magnitudes.mean(axis=1, keepdims=True)
        sent = (magnitudes >= cut) & (magnitudes > 0)
        total = np.where(sent, magnitudes, 0).sum(axis=1, keepdims=True)
        scale = (total / np.maximum(sent.sum(axis=1, keepdims=True), 1)).astype("<f4")
        rows, count = numbers.shape
        digits = np.ones((rows, -(-count // _DIGITS) * _DIGITS), np.int64)
        digits[:, :count] += np.where(sent, np.sign(numbers), 0).astype(np.int64)
        packed = (digits.reshape(rows, -1, _DIGITS) * _POWERS).sum(axis=2).astype(np.uint8)
        return np.concatenate([scale.view(np.uint8), packed], axis=1)

    def _decode_blocks(self, records: Bytes, out: Numbers) -> None:
        scale = records[:, :_SCALE_BYTES].copy().view("<f4")
        numbers = _NUMBERS[records[:, _SCALE_BYTES:]].reshape(len(records), -1)
        np.multiply(numbers[:, : out.shape[1]], scale, out=out)


TERNARY = Ternary()
