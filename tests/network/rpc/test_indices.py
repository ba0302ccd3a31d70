"""Indices become bytes and come back the same, or are refused."""

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from downpour.base.errors import IncompatiblePeer
from downpour.network.rpc.messages import pack_indices, unpack_indices


@given(st.lists(st.integers(0, 2**63 - 1)))
def test_indices_survive(indices: list[int]) -> None:
    """Whatever is packed is unpacked, in its order."""
    width, packed = pack_indices(np.array(indices, dtype=np.int64))
    assert unpack_indices(width, len(indices), packed).tolist() == indices


@pytest.mark.parametrize(("top", "width"), [(0, 2), (65535, 2), (65536, 4), (2**32, 8)])
def test_the_width_is_the_smallest_that_fits(top: int, width: int) -> None:
    """Two, four or eight bytes, by the largest index."""
    assert pack_indices(np.array([0, top]))[0] == width


def test_bytes_are_little_endian() -> None:
    """The layout is the same on every machine."""
    assert pack_indices(np.array([1, 258]))[1] == b"\x01\x00\x02\x01"


@pytest.mark.parametrize(
    ("width", "count", "data"),
    [(3, 1, b"abc"), (0, 0, b""), (2, 2, b"ab"), (2, -1, b""), (4, 1, b"ab"), (2, 2**62, b"ab"),
     (8, 1, b"\xff" * 8)],
)  # fmt: skip
def test_hostile_indices_are_refused(width: int, count: int, data: bytes) -> None:
    """Width, count and bytes must fit together, and an index fits 63 bits."""
    with pytest.raises(IncompatiblePeer, match="indices"):
        unpack_indices(width, count, data)


@pytest.mark.parametrize(
    "indices", [np.array([-1]), np.array([[1]]), np.array([0.5]), np.array([True])]
)
def test_only_flat_counts_are_packed(indices: npt.NDArray[np.int64]) -> None:
    """What is no index is a defect of the caller."""
    with pytest.raises(ValueError, match="indices"):
        pack_indices(indices)


def test_unpacked_indices_cannot_be_changed() -> None:
    """A task is a value, and so are its indices."""
    assert not unpack_indices(2, 1, b"ab").flags.writeable
