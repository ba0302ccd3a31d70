"""Parameters survive the way to bytes and back, and the safetensors library agrees."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from safetensors.numpy import load as library_load
from safetensors.numpy import save as library_save

from downpour.base.errors import SpecError
from downpour.files.store import Array, decode, encode
from downpour.files.store.header import DTYPES

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
    """A file that the library wrote is understood here.

    Not one without tensors: safetensors 0.8 writes metadata beside none as broken JSON.
    """
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
