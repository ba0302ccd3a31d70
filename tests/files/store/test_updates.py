"""What an update's file holds and says, and how unreported ones are found."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load

from downpour.base.errors import FileCorrupt, NonFinite, SpecError
from downpour.base.values import AttemptId, PublishedFile
from downpour.files.compression import CODECS
from downpour.files.store import (
    WHOLE,
    Array,
    DirectoryStore,
    ParameterFile,
    UpdateFormat,
    Work,
    decode,
    decompressed,
    encode,
    find_updates,
    model_metadata,
    publish_work,
)
from downpour.files.store.layout import attempt_name
from downpour.files.store.publish import RetryPolicy
from downpour.files.store.updates import compress

ATTEMPT = AttemptId(experiment="any", round=2, shard=1, attempt=3)

WORK = Work(
    parameters={"w": np.arange(6, dtype=np.float32)},
    optimizer_state={"w/momentum": np.ones(6, dtype=np.float32)},
    samples=100,
    steps=7,
    loss=0.1 + 0.2,
)


@pytest.fixture
def store(tmp_path: Path) -> DirectoryStore:
    """An empty directory."""
    return DirectoryStore(tmp_path, RetryPolicy(seconds=0))


def test_a_published_update_is_found(store: DirectoryStore) -> None:
    """Numbers and files are those of the report; only the seconds are not known."""
    file, state = publish_work(store, ATTEMPT, WORK)
    [(attempt, update)] = find_updates(store, [ATTEMPT, replace(ATTEMPT, shard=0)])
    assert (attempt, update.file, update.optimizer_state) == (ATTEMPT, file, state)
    assert (update.samples, update.steps, update.loss) == (100, 7, 0.1 + 0.2)


def test_two_attempts_give_files_of_the_same_bytes(store: DirectoryStore) -> None:
    """What a file says of itself follows from its task alone."""
    one = publish_work(store, ATTEMPT, WORK)[0]
    other = publish_work(store, replace(ATTEMPT, attempt=4), WORK)[0]
    assert one.checksum == other.checksum


def test_whole_updates_keep_their_bytes(store: DirectoryStore) -> None:
    """As they were before there was another way of writing them."""
    file, state = publish_work(store, ATTEMPT, WORK)
    assert state is not None
    assert (file.size_bytes, file.checksum) == (240, "e78a448401712935478d144d01798a60")
    assert (state.size_bytes, state.checksum) == (96, "183e90158883a361ddbf8523b0096947")


def test_an_update_that_cannot_be_published_leaves_no_state_behind(store: DirectoryStore) -> None:
    """The worker publishes the state first, and only the worker can know about it."""
    unfit = {"weight": np.array([1j])}
    state = {"momentum": np.ones(2, np.float32)}
    work = Work(parameters=unfit, optimizer_state=state, samples=1, steps=1, loss=1.0)
    with pytest.raises(SpecError, match="complex"):
        publish_work(store, ATTEMPT, work)
    assert store.list() == []


def test_only_what_is_asked_for_is_found(store: DirectoryStore) -> None:
    """Neither other attempts' updates, nor one of another kind, nor strange files."""
    publish_work(store, replace(ATTEMPT, attempt=4), WORK)
    store.put_new("model-000001-ab.safetensors", [b"a model"])
    store.put_new(attempt_name("snapshot", ATTEMPT, "ab"), [b"a snapshot"])
    assert list(find_updates(store, [ATTEMPT])) == []


@pytest.mark.parametrize("part", [0, 1], ids=["update", "optimizer state"])
@pytest.mark.parametrize("at", [-1, -8, 40])
def test_an_altered_update_is_skipped(store: DirectoryStore, part: int, at: int) -> None:
    """The name says what its checksum was, and the update what that of its state was."""
    file = publish_work(store, ATTEMPT, WORK)[part]
    assert file is not None
    path = store.path / file.name
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(content)
    assert list(find_updates(store, [ATTEMPT])) == []


def test_an_update_whose_optimizer_state_is_gone_is_left_aside(store: DirectoryStore) -> None:
    """The next round would begin with a fresh state."""
    state = publish_work(store, ATTEMPT, WORK)[1]
    assert state is not None
    store.delete(state.name)
    assert list(find_updates(store, [ATTEMPT])) == []


def test_an_update_that_never_had_an_optimizer_state_is_found(store: DirectoryStore) -> None:
    """An optimizer may have none, such as SGD without momentum."""
    publish_work(store, ATTEMPT, replace(WORK, optimizer_state={}))
    [(_, update)] = find_updates(store, [ATTEMPT])
    assert update.optimizer_state is None


def test_a_short_or_foreign_update_is_skipped(store: DirectoryStore) -> None:
    """A name alone proves nothing."""
    whole = publish_work(store, replace(ATTEMPT, shard=9), WORK)[0]
    content = (store.path / whole.name).read_bytes()
    store.put_new(attempt_name("update", ATTEMPT, "aa"), [content])
    store.put_new(attempt_name("update", ATTEMPT, "bb"), [content[:-4]])
    assert list(find_updates(store, [ATTEMPT])) == []
    good = publish_work(store, ATTEMPT, WORK)[0]
    [(_, update)] = find_updates(store, [ATTEMPT])
    assert update.file == good


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
