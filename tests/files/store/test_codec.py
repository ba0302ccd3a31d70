"""Parameters survive the way to bytes and back; headers that do not fit are refused."""

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from safetensors.numpy import load as library_load
from safetensors.numpy import save as library_save

from downpour.base.errors import FileCorrupt, SpecError
from downpour.files.store import Array, decode, encode
from downpour.files.store.header import DTYPES, HEADER_BYTES_MAX, plan_layout, write_header

arrays = st.sampled_from(sorted(DTYPES)).flatmap(
    lambda code: hnp.arrays(DTYPES[code], hnp.array_shapes(min_dims=0, min_side=0, max_side=4))
)

names = st.text(min_size=1, max_size=9).filter(lambda name: name != "__metadata__")

parameters = st.dictionaries(names, arrays, max_size=6)

metadata = st.dictionaries(st.text(max_size=5), st.text(max_size=9), max_size=3)


def joined(tensors: dict[str, Array], facts: dict[str, str] | None = None) -> bytes:
    """Return the whole file."""
    return b"".join(encode(tensors, facts or {}))


def assert_same(found: dict[str, Any], expected: dict[str, Any]) -> None:
    """Compare names, dtypes, shapes and bytes (so that NaN equals itself)."""
    assert found.keys() == expected.keys()
    for name, array in expected.items():
        assert (found[name].dtype, found[name].shape) == (array.dtype, array.shape)
        assert found[name].tobytes() == array.tobytes()


@given(tensors=parameters, facts=metadata)
def test_encoded_tensors_decode_to_themselves(
    tensors: dict[str, Array], facts: dict[str, str]
) -> None:
    """Every dtype, scalars, empty tensors and any text come back as they were."""
    file = decode(joined(tensors, facts), "file")
    assert_same(file.tensors, tensors)
    assert file.metadata == facts


@given(tensors=parameters, facts=metadata)
def test_the_safetensors_library_reads_our_files(
    tensors: dict[str, Array], facts: dict[str, str]
) -> None:
    """What is written here is a safetensors file."""
    assert_same(library_load(joined(tensors, facts)), tensors)


@given(tensors=parameters.filter(bool), facts=metadata)
def test_we_read_the_safetensors_librarys_files(
    tensors: dict[str, Array], facts: dict[str, str]
) -> None:
    """All but one without tensors: safetensors 0.8 writes metadata beside none as broken JSON."""
    file = decode(library_save(tensors, facts or None), "file")
    assert_same(file.tensors, tensors)
    assert file.metadata == facts


@given(tensors=parameters, facts=metadata)
def test_equal_parameters_give_equal_bytes(
    tensors: dict[str, Array], facts: dict[str, str]
) -> None:
    """The order in which names were put into the mapping does not matter."""
    backwards = dict(reversed(tensors.items()))
    assert joined(backwards, dict(reversed(facts.items()))) == joined(tensors, facts)


@given(tensors=parameters, facts=metadata)
def test_every_tensor_is_aligned(tensors: dict[str, Array], facts: dict[str, str]) -> None:
    """No tensor's place in the file is odd for its dtype."""
    file = decode(joined(tensors, facts), "file")
    assert len(file.head) % 8 == 0
    assert all(entry.start % entry.dtype.itemsize == 0 for entry in file.layout.entries)


def test_nothing_is_copied() -> None:
    """Chunks are the tensors' memory, and decoded tensors are the buffer's."""
    weights = np.arange(6, dtype=np.float32).reshape(2, 3)
    chunk = np.frombuffer(encode({"w": weights}, {})[1], np.float32)
    assert np.shares_memory(chunk, weights)
    content = joined({"w": weights})
    assert np.shares_memory(decode(content, "f").tensors["w"], np.frombuffer(content, np.uint8))


def test_decoded_tensors_are_read_only() -> None:
    """A published file cannot be changed through its tensors, even if its buffer could."""
    tensor = decode(bytearray(joined({"w": np.zeros(3)})), "f").tensors["w"]
    with pytest.raises(ValueError, match="read-only"):
        tensor[0] = 1


def test_tensors_that_lie_oddly_in_memory_are_stored_as_they_read() -> None:
    """Transposed, strided and big-endian arrays keep their values."""
    whole = np.arange(12, dtype=np.float32).reshape(3, 4)
    odd = {"t": whole.T, "s": whole[:, ::2], "b": whole.astype(">f4")}
    found = decode(joined(odd), "f").tensors
    for name, array in odd.items():
        np.testing.assert_array_equal(found[name], array)


@pytest.mark.parametrize("dtype", ["complex64", "uint16", "float128", "U3", "V2"])
def test_dtypes_without_a_place_are_refused(dtype: str) -> None:
    """The error names the tensor, its dtype and what could be stored (V2: bfloat16 elsewhere)."""
    with pytest.raises(SpecError, match=r"model = .*fc\.weight cannot be stored.*F64, F32"):
        encode({"fc.weight": np.zeros(2, dtype)}, {})


def test_the_reserved_name_is_refused() -> None:
    """A tensor cannot stand where the metadata do."""
    with pytest.raises(ValueError, match="__metadata__"):
        encode({"__metadata__": np.zeros(1)}, {})


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
