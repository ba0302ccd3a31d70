"""Compressed updates are folded as whole ones are: window by window, and the bad ones are named."""

import gc
import math
import tracemalloc
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import pytest

from downpour.base.errors import UpdatesRefused
from downpour.base.values import PublishedFile
from downpour.files.aggregators import AGGREGATORS, Contribution, fold, summing
from downpour.files.compression import CODECS
from downpour.files.store import (
    WHOLE,
    Array,
    Store,
    UpdateFormat,
    decode,
    decompressed,
    encode,
    model_metadata,
)
from downpour.files.store.layout import MemoryStore
from downpour.files.store.updates import compress
from downpour.host import process
from tests.files.aggregators.conftest import RULES, WEIGHING, contribution_of, weigh, whole

Tensors = dict[str, Array]

BUFFERS = ("running_mean", "mask", "batches")

every_codec = pytest.mark.parametrize("name", CODECS)


def model_of(random: np.random.Generator, size: int = 5000) -> Tensors:
    """Return parameters and buffers of every kind."""
    return {
        "weight": random.normal(size=(size, 3)).astype(np.float32),
        "bias": random.normal(size=7).astype(np.float32),
        "double": random.normal(size=70),
        "half": random.normal(size=70).astype(np.float16),
        "scale": np.array(random.normal(), np.float32),
        "none": np.zeros((0, 4), np.float32),
        "running_mean": random.normal(size=9).astype(np.float32),
        "mask": np.array([0, -np.inf], np.float32),
        "batches": np.array(random.integers(100)),
        "count": np.array([3], np.int32),
    }


def trained_from(model: Tensors, random: np.random.Generator) -> Tensors:
    """Move some parameters and the running mean, count batches."""
    moved = {name: array.copy() for name, array in model.items()}
    for name in ("weight", "bias", "double", "half", "scale", "running_mean"):
        step = random.normal(size=model[name].shape) * 1e-2
        moved[name] = (model[name] + step).astype(model[name].dtype)
    moved["weight"][::2] = model["weight"][::2]
    moved["batches"] = model["batches"] + 1
    return moved


def publish_model(store: Store, tensors: Tensors) -> PublishedFile:
    """Publish a model that names its buffers."""
    return store.put_new("model", encode(tensors, model_metadata(BUFFERS)))


def publish(
    store: Store, model: PublishedFile, trained: Tensors, compression: str, name: str
) -> PublishedFile:
    """Publish an update of the model."""
    file = decode(store.read(model), model.name)
    form = UpdateFormat.of(file, model, compression)
    if compression == WHOLE:
        return store.put_new(name, encode(trained, {}))
    tensors, _ = compress(form, file.tensors, trained, {})
    return store.put_new(name, encode(tensors, form.metadata, form.layout))


def contributions(
    store: Store, model: PublishedFile, trained: Sequence[Tensors], compression: str
) -> list[Contribution]:
    """Publish all updates of a round."""
    return [
        contribution_of(shard, publish(store, model, one, compression, f"update-{shard}"))
        for shard, one in enumerate(trained)
    ]


def folded(
    store: Store,
    model: PublishedFile,
    parts: Sequence[Contribution],
    compression: str,
    rule: str = "average",
    threads: int = 1,
) -> Mapping[str, Array]:
    """Fold by a rule."""
    weights = AGGREGATORS[rule](parts)
    return fold(store, model, parts, weights, compression=compression, threads=threads)


@every_codec
@pytest.mark.parametrize("rule", WEIGHING)
def test_the_fold_takes_the_weighted_differences_from_the_model(
    random: np.random.Generator, name: str, rule: str
) -> None:
    """x0 - Σ w_i d_i, with what each update's file holds; buffers are averaged as they are."""
    store, start = MemoryStore(), model_of(random)
    model = publish_model(store, start)
    trained = [trained_from(start, random) for _ in range(3)]
    parts = contributions(store, model, trained, name)
    found, weights = folded(store, model, parts, name, rule), weigh(rule, parts)
    held = [dict(decompressed(decode(store.read(part.file), part.file.name))) for part in parts]
    for tensor in ("weight", "bias", "double", "half", "scale"):
        moved = sum(w * one[tensor].astype(float) for w, one in zip(weights, held, strict=True))
        unit = 2e-3 if tensor == "half" else 1e-6
        np.testing.assert_allclose(found[tensor], start[tensor] - moved, rtol=unit, atol=unit)
        assert (found[tensor].dtype, found[tensor].shape) == (
            start[tensor].dtype,
            start[tensor].shape,
        )
    mean = sum(w * one["running_mean"] for w, one in zip(weights, trained, strict=True))
    np.testing.assert_allclose(found["running_mean"], mean, rtol=1e-5)
    assert found["batches"] == start["batches"] + 1
    for tensor in ("mask", "count", "none"):
        np.testing.assert_array_equal(found[tensor], start[tensor])


@every_codec
@pytest.mark.parametrize("rule", RULES)
def test_unchanged_numbers_stay_to_the_bit(
    random: np.random.Generator, name: str, rule: str
) -> None:
    """The sign of a zero, too."""
    store, start = MemoryStore(), model_of(random)
    start["weight"][0] = -0.0, 1e-45, 1e38
    model = publish_model(store, start)
    trained = [trained_from(start, random) for _ in range(3)]
    found = folded(store, model, contributions(store, model, trained, name), name, rule)
    assert found["weight"][::2].tobytes() == start["weight"][::2].tobytes()
    # Codecs that send few numbers leave most medians at zero.
    assert rule not in WEIGHING or not np.array_equal(found["weight"], start["weight"])


@every_codec
@pytest.mark.parametrize("rule", ["average", "samples", "first", "median"])
def test_neither_windows_nor_threads_nor_groups_change_a_byte(
    random: np.random.Generator, monkeypatch: pytest.MonkeyPatch, name: str, rule: str
) -> None:
    """Checksums are right for all of them, or the fold would refuse."""
    store, start = MemoryStore(), model_of(random)
    model = publish_model(store, start)
    trained = [trained_from(start, random) for _ in range(5)]
    parts = contributions(store, model, trained, name)
    expected = whole(folded(store, model, parts, name, rule))
    monkeypatch.setattr(summing, "PIECE_BYTES", 64)
    monkeypatch.setattr(process, "_FILES_AT_ONCE_MAX", 2)
    for threads in (1, 2, 3):
        assert whole(folded(store, model, parts[::-1], name, rule, threads)) == expected


@every_codec
def test_an_update_without_weight_adds_nothing(random: np.random.Generator, name: str) -> None:
    """Also the lowest shard's, which supplies only the whole numbers."""
    store, start = MemoryStore(), model_of(random)
    model = publish_model(store, start)
    trained = [trained_from(start, random) for _ in range(3)]
    trained[0]["batches"] += 7
    parts = contributions(store, model, trained, name)
    found = fold(store, model, parts, [0.0, 0.5, 0.5], compression=name)
    others = fold(store, model, parts[1:], [0.5, 0.5], compression=name)
    for tensor, expected in {**others, "batches": trained[0]["batches"]}.items():
        np.testing.assert_array_equal(found[tensor], expected)


def spoil(
    store: Store, model: PublishedFile, part: Contribution, trained: Tensors, fault: str, name: str
) -> PublishedFile:
    """Return another file in place of an update's."""
    file = decode(store.read(part.file), part.file.name)
    tensors = {key: array.copy() for key, array in file.tensors.items()}
    metadata = dict(file.metadata)
    if fault == "altered":
        return replace(part.file, checksum="0" * 32)
    if fault == "whole":
        return publish(store, model, trained, WHOLE, f"bad-{fault}")
    if fault == "codec":
        other = "int8" if name != "int8" else "ternary"
        return publish(store, model, trained, other, f"bad-{fault}")
    if fault == "base":
        metadata["trained_from"] = "0" * 32
    elif fault == "NaN":
        tensors["weight"][:] = 255
    elif fault == "buffer":
        tensors["running_mean"][0] = math.nan
    elif fault == "said":
        metadata["compressed"] = "{}"
    elif fault == "short":
        tensors["weight"] = tensors["weight"][:-8]
    layout = None if fault == "short" else file.layout
    return store.put_new(f"bad-{fault}", encode(tensors, metadata, layout))


FAULTS = {
    "altered": "checksum",
    "whole": "its compression is 'none', not ",
    "codec": "its compression is ",
    "base": "a worker trained it from another version",
    "NaN": "tensor 'weight' holds NaN or infinity",
    "buffer": "tensor 'running_mean' holds NaN or infinity",
    "said": "its description of the tensors",
    "short": "its tensors are not the model's: 'weight' is uint8",
}


@every_codec
@pytest.mark.parametrize("rule", ["average", "first", "median"])
def test_exactly_the_bad_updates_are_named(
    random: np.random.Generator, name: str, rule: str
) -> None:
    """Each with its reason, whatever it would have counted."""
    store, start = MemoryStore(), model_of(random)
    model = publish_model(store, start)
    trained = [trained_from(start, random) for _ in range(2 * len(FAULTS) + 1)]
    parts = contributions(store, model, trained, name)
    bad = {2 * number + 1: fault for number, fault in enumerate(FAULTS)}
    for shard, fault in bad.items():
        file = spoil(store, model, parts[shard], trained[shard], fault, name)
        parts[shard] = replace(parts[shard], file=file)
        some = [parts[shard - 1], parts[shard], parts[shard + 1]]
        with pytest.raises(UpdatesRefused) as refusal:
            folded(store, model, some, name, rule)
        assert list(refusal.value.reasons) == [shard]
    with pytest.raises(UpdatesRefused) as refusal:
        folded(store, model, parts, name, rule)
    assert list(refusal.value.reasons) == list(bad)
    for shard, fault in bad.items():
        assert FAULTS[fault] in refusal.value.reasons[shard]


def test_a_compressed_update_is_refused_where_whole_ones_are_summed(
    random: np.random.Generator,
) -> None:
    """One spec has one compression."""
    store, start = MemoryStore(), model_of(random)
    model = publish_model(store, start)
    parts = contributions(store, model, [start] * 3, WHOLE)
    parts[1] = replace(parts[1], file=publish(store, model, start, "int8", "odd"))
    with pytest.raises(UpdatesRefused, match="shard 1: its compression is 'int8', not 'none'"):
        folded(store, model, parts, WHOLE)


@pytest.mark.parametrize("name", ["int8", "topk"])
def test_memory_holds_one_model(random: np.random.Generator, name: str) -> None:
    """However many updates there are."""
    start = {"w": random.normal(size=2_000_000).astype(np.float32)}
    store = MemoryStore()
    model = publish_model(store, start)
    parts = contributions(store, model, [{"w": start["w"] * 1.01}] * 4, name)
    gc.collect()
    tracemalloc.start()
    folded(store, model, parts, name)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1.6 * start["w"].nbytes
