"""What lies where in an update's file, and what the file says of it."""

from __future__ import annotations

import json

import numpy as np
import pytest
from safetensors.numpy import load

from downpour.base.errors import FileCorrupt, NonFinite
from downpour.base.values import PublishedFile
from downpour.files.compression import CODECS
from downpour.files.store import (
    WHOLE,
    Array,
    ParameterFile,
    UpdateFormat,
    decode,
    decompressed,
    encode,
    model_metadata,
)
from downpour.files.store.updates import compress

FILE = PublishedFile(name="model", size_bytes=1, checksum="c" * 32)
MODEL: dict[str, Array] = {
    "a.weight": np.linspace(-1, 1, 5001, dtype=np.float32).reshape(3, 1667),
    "b.mean": np.arange(3, dtype=np.float32),
    "c.bias": np.arange(5, dtype=np.float32),
    "d.count": np.array(7),
}


def model_file() -> ParameterFile:
    """Return the file of the model, which names its buffers."""
    chunks = encode(MODEL, model_metadata(["b.mean", "d.count"]))
    return decode(b"".join(chunks), "model")


def test_a_whole_update_is_laid_out_as_the_model() -> None:
    """Its file says nothing of itself, whether the model's names buffers or not."""
    model = model_file()
    form = UpdateFormat.of(model, FILE, WHOLE)
    assert (form.metadata, form.layout) == ({}, model.layout)
    held = [(one.dtype, one.start, one.stop, one.codec) for one in form.ranges()]
    assert held == [(np.dtype("<i8"), 0, 8, None), (np.dtype("<f4"), 8, 8 + 4 * 5009, None)]


@pytest.mark.parametrize("name", CODECS)
def test_the_file_alone_says_what_it_holds(name: str) -> None:
    """The codec, the model, types and shapes; every reader of safetensors opens it."""
    model = model_file()
    form = UpdateFormat.of(model, FILE, name)
    trained = {**MODEL, "a.weight": MODEL["a.weight"] * np.float32(1.01), "d.count": np.array(8)}
    tensors, unsent = compress(form, MODEL, trained, {})
    content = b"".join(encode(tensors, form.metadata, form.layout))
    file = decode(content, "update")
    assert file.metadata["compression"] == name
    assert file.metadata["trained_from"] == FILE.checksum
    said = json.loads(file.metadata["compressed"])
    assert said == {"a.weight": ["F32", [3, 1667]], "c.bias": ["F32", [5]]}
    assert [entry.name for entry in file.layout.entries] == ["d.count", *sorted(MODEL)[:3]]
    assert all(entry.start % entry.dtype.itemsize == 0 for entry in file.layout.entries)
    codec = CODECS[name]
    size = -(-codec.size(5001) // 8) * 8 + 12 + -(-codec.size(5) // 8) * 8 + 8
    assert file.layout.size_bytes == size
    opened = load(content)
    assert opened.keys() == MODEL.keys()
    np.testing.assert_array_equal(opened["b.mean"], MODEL["b.mean"])
    assert opened["d.count"] == 8
    found = dict(decompressed(file))
    difference = MODEL["a.weight"] - trained["a.weight"]
    due = found["a.weight"].ravel() + unsent.get("a.weight", 0)
    assert np.abs(due - difference.ravel()).max() <= 0.01
    assert not found["c.bias"].any()
    assert bool(unsent) == (codec.feedback is not None)


def test_an_unsent_part_is_added_to_the_next_difference() -> None:
    """Times the codec's factor."""
    form = UpdateFormat.of(model_file(), FILE, "topk")
    unsent = {"c.bias": np.array([0, 0, 0, 1, 0], np.float32)}
    tensors, left = compress(form, MODEL, MODEL, unsent)
    file = decode(b"".join(encode(tensors, form.metadata, form.layout)), "update")
    np.testing.assert_allclose(dict(decompressed(file))["c.bias"], [0, 0, 0, 0.95, 0], rtol=0.01)
    assert np.abs(left["c.bias"]).max() < 0.01


def test_a_difference_that_cannot_be_written_is_named() -> None:
    """By its tensor."""
    form = UpdateFormat.of(model_file(), FILE, "float16")
    with pytest.raises(NonFinite, match=r"c\.bias: a difference is too large for float16"):
        compress(form, MODEL, {**MODEL, "c.bias": MODEL["c.bias"] + 1e6}, {})


def test_a_model_that_does_not_say_what_its_buffers_are_is_damaged() -> None:
    """Instead of an error of whatever reads it."""
    model = decode(b"".join(encode(MODEL, {"buffers": "[1"})), "model")
    with pytest.raises(FileCorrupt, match="buffers"):
        UpdateFormat.of(model, FILE, "int8")
