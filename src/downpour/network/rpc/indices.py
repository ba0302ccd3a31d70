"""Data indices as bytes: little-endian and unsigned, in the smallest width that holds them.

Packed indices cost a tenth to a two-hundredth of a Thrift list. Above `PACKED_BYTES_MAX` they do
not fit into a message. Then the manager publishes the bytes as a file and sends an `IndicesFile`;
the worker reads the file and unpacks it with this module. Code that knows the dataset checks
whether an index exists in it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from downpour.base.errors import IncompatiblePeer
from downpour.network.rpc.messages import IndexArray

# Half of the largest frame, because the frame holds the rest of the task as well.
PACKED_BYTES_MAX = 8 * 2**20

_WIDTHS_BYTES = (2, 4, 8)


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedIndices:
    """`count` indices in `data`, `width_bytes` each."""

    width_bytes: int
    count: int
    data: bytes


def pack_indices(indices: npt.NDArray[np.integer]) -> PackedIndices:
    """Pack indices of shape (n,).

    Raises:
        ValueError: they are not a flat array of non-negative integers.
    """
    if indices.ndim != 1 or not np.issubdtype(indices.dtype, np.integer):
        raise ValueError(f"indices: a flat array of integers, not {indices.dtype} {indices.shape}")
    if indices.size and int(indices.min()) < 0:
        raise ValueError(f"indices: {int(indices.min())} is negative")
    top = int(indices.max()) if indices.size else 0
    width = next(width for width in _WIDTHS_BYTES if top < 1 << 8 * width)
    data = indices.astype(f"<u{width}").tobytes()
    return PackedIndices(width_bytes=width, count=int(indices.size), data=data)


def unpack_indices(width_bytes: int, count: int, data: bytes | memoryview) -> IndexArray:
    """Unpack the bytes of `pack_indices` into a read-only int64 array of shape (count,).

    Raises:
        IncompatiblePeer: width, count and data do not fit together.
    """
    if width_bytes not in _WIDTHS_BYTES:
        raise IncompatiblePeer(f"indices.width_bytes = {width_bytes}: 2, 4 or 8")
    if count < 0 or count * width_bytes != len(data):
        shape = f"{count} indices of {width_bytes} bytes"
        raise IncompatiblePeer(f"indices.count = {count}: {shape} are not {len(data)} bytes")
    unsigned = np.frombuffer(data, dtype=f"<u{width_bytes}")
    # As int64, such an index would be negative, and numpy counts negative indices from the end.
    if count and int(unsigned.max()) >= 2**63:
        raise IncompatiblePeer(f"indices: {int(unsigned.max())} is too large for an index")
    indices = unsigned.astype(np.int64)
    indices.flags.writeable = False
    return indices
