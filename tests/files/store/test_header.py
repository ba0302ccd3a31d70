"""Headers from anybody: whatever does not fit is refused, in one line and at once."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from downpour.base.errors import FileCorrupt
from downpour.files.store import decode, encode
from downpour.files.store.header import DTYPES, HEADER_BYTES_MAX, plan_layout, write_header

Fields = dict[str, Any]


def file_of(fields: object, data: bytes = bytes(16)) -> bytes:
    """Return a file with any header at all."""
    text = fields if isinstance(fields, bytes) else json.dumps(fields).encode()
    return len(text).to_bytes(8, "little") + text + data


def tensor(dtype: Any = "F32", shape: Any = (4,), offsets: Any = (0, 16)) -> Fields:
    """Return one tensor's field, which is right unless told otherwise."""
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


def test_a_right_header_passes() -> None:
    """The helper's own header is accepted, so each refusal below is for its own fault."""
    assert decode(file_of({"w": tensor()}), "file").tensors["w"].shape == (4,)


def test_a_large_empty_tensor_passes() -> None:
    """The largest shape that is accepted is one that numpy makes, in every dtype."""
    wide = tensor(shape=[0, 2**60 - 1], offsets=[0, 0])
    for dtype in DTYPES:
        array = decode(file_of({"w": wide | {"dtype": dtype}}, b""), "file").tensors["w"]
        assert array.astype(np.float64).shape == (0, 2**60 - 1)


HOSTILE: dict[str, bytes] = {
    "empty": b"",
    "too few bytes": b"\1\0\0",
    "a header longer than the file": (10**6).to_bytes(8, "little") + b"{}",
    "a header longer than any": (HEADER_BYTES_MAX + 1).to_bytes(8, "little") + b"{}",
    "a length that is negative elsewhere": b"\xff" * 8 + b"{}",
    "no JSON": file_of(b"not json"),
    "no UTF-8": file_of(b'{"\xff": 1}'),
    "a list": file_of([]),
    "a number": file_of(7),
    "depth without end": file_of(b"[" * 100_000),
    "digits without end": file_of(b'{"w": ' + b"9" * 100_000 + b"}"),
    "a name twice": file_of(b'{"w": 1, "w": 2}'),
    "metadata of numbers": file_of({"__metadata__": {"a": 1}, "w": tensor()}),
    "metadata no object": file_of({"__metadata__": "text", "w": tensor()}),
    "a tensor no object": file_of({"w": 3}),
    "a field missing": file_of({"w": {"dtype": "F32", "shape": [4]}}),
    "a field too many": file_of({"w": tensor() | {"extra": 1}}),
    "an unknown dtype": file_of({"w": tensor(dtype="F8_E4M3")}),
    "a dtype no text": file_of({"w": tensor(dtype=["F32"])}),
    "a shape no list": file_of({"w": tensor(shape="4")}),
    "a negative size": file_of({"w": tensor(shape=[-4])}),
    "a size that is a truth": file_of({"w": tensor(shape=[True, 4])}),
    "a broken size": file_of({"w": tensor(shape=[4.0])}),
    "a shape of other product": file_of({"w": tensor(shape=[5])}),
    "a shape of too many dimensions": file_of({"w": tensor(shape=[1] * 100 + [4])}),
    "an impossible empty shape": file_of({"w": tensor(shape=[0, 2**70], offsets=[0, 0])}, b""),
    **{
        f"an empty shape beyond the bytes that numpy counts, of {dtype}": file_of(
            {"w": tensor(dtype=dtype, shape=[0, size], offsets=[0, 0])}, b""
        )
        for dtype in ("F64", "F32", "U8")
        for size in (2**62, 2**60)
    },
    "offsets reversed": file_of({"w": tensor(offsets=[16, 0])}),
    "offsets of three": file_of({"w": tensor(offsets=[0, 16, 16])}),
    "offsets negative": file_of({"w": tensor(offsets=[-16, 0])}),
    "offsets beyond the end": file_of({"w": tensor(shape=[8], offsets=[0, 32])}),
    "a gap before": file_of({"w": tensor(shape=[3], offsets=[4, 16])}),
    "bytes left over": file_of({"w": tensor()}, bytes(17)),
    "two in one place": file_of({"v": tensor(), "w": tensor()}),
    "two that overlap": file_of({"v": tensor(), "w": tensor(offsets=[8, 24])}, bytes(24)),
    "a gap between": file_of({"v": tensor(), "w": tensor(offsets=[20, 36])}, bytes(36)),
}


@pytest.mark.parametrize("fault", HOSTILE)
def test_hostile_headers_are_refused(fault: str) -> None:
    """Each is corrupt, under the file's name, and the message is one short line."""
    with pytest.raises(FileCorrupt, match="update-7: is not a parameter file") as refusal:
        decode(HOSTILE[fault], "update-7")
    assert "\n" not in str(refusal.value)
    assert len(str(refusal.value)) < 400


@given(junk=st.binary(max_size=200))
def test_junk_never_raises_anything_else(junk: bytes) -> None:
    """Random bytes, also behind a plausible length, are corrupt or (rarely) a file."""
    for content in (junk, file_of(junk, b"")):
        try:
            decode(content, "junk")
        except FileCorrupt:
            continue


@given(data=st.data())
def test_one_flipped_byte_in_a_header_never_raises_anything_else(data: st.DataObject) -> None:
    """A damaged header is refused or understood; it never crashes its reader."""
    tensors = {"w": np.ones((2, 3), np.float32), "n": np.array(3)}
    content = bytearray(b"".join(bytes(chunk) for chunk in encode(tensors, {"a": "b"})))
    place = data.draw(st.integers(0, len(content) - 1))
    content[place] ^= data.draw(st.integers(1, 255))
    try:
        decode(content, "damaged")
    except FileCorrupt:
        return


def test_a_header_nobody_would_read_is_not_written() -> None:
    """Writing keeps the bound that reading checks."""
    with pytest.raises(ValueError, match="at most"):
        write_header(plan_layout({}), {"a": "x" * HEADER_BYTES_MAX})
