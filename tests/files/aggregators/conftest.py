"""Contributions to aggregate, with and without files, and files that cannot be used."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from downpour.base.values import PublishedFile
from downpour.core import families
from downpour.files.aggregators import AGGREGATORS, Contribution, Weights
from downpour.files.store import Array, Store, decode, encode

RULES = families.AGGREGATORS.examples
"""Every aggregator."""

WEIGHING = ("average", "weighted", "samples", "first")
"""Those that weigh updates; the others combine their numbers."""


def weigh(rule: str, contributions: Sequence[Contribution]) -> Weights:
    """Return the weights by a rule that weighs."""
    weights = AGGREGATORS[rule](contributions)
    assert isinstance(weights, tuple)
    return weights


def contribution_of(shard: int, file: PublishedFile) -> Contribution:
    """Return what a shard contributes; samples and losses differ among shards."""
    return Contribution(shard=shard, samples=10 + shard, loss=1.0 + shard, file=file)


def contribute(
    store: Store, updates: Sequence[Mapping[str, Array]], prefix: str = "update"
) -> list[Contribution]:
    """Publish an update for each shard, counted from 0; return what they contribute."""
    return [
        contribution_of(shard, store.put_new(f"{prefix}-{shard}", encode(update, {})))
        for shard, update in enumerate(updates)
    ]


def imagine(shard: int, **facts: Any) -> Contribution:
    """Return a contribution without a file: its samples and its loss are 1 unless told."""
    file = PublishedFile(name=f"update-{shard}", size_bytes=0, checksum="")
    return replace(Contribution(shard=shard, samples=1, loss=1.0, file=file), **facts)


def whole(tensors: Mapping[str, Array]) -> bytes:
    """Return all bytes of a file of tensors."""
    return b"".join(bytes(chunk) for chunk in encode(tensors, {}))


SPOILED = {
    "missing": "no such file",
    "short": "bytes, but",
    "altered": "checksum",
    "nan": "tensor 'weight' holds NaN or infinity",
    "inf": "tensor 'weight' holds NaN or infinity",
    "-inf": "tensor 'weight' holds NaN or infinity",
    "shapes": "'weight' is float32 [2, 2], not float32 ",
    "names": "'double' is missing",
    "format": "not a parameter file",
}
"""What is said of each fault that `spoiled` makes."""


def spoiled(store: Store, file: PublishedFile, fault: str) -> PublishedFile:
    """Return another file in place of an update's."""
    if fault == "missing":
        store.delete(file.name)
        return file
    if fault == "short":
        return replace(file, size_bytes=file.size_bytes + 1)
    if fault == "altered":
        return replace(file, checksum="0" * 32)
    if fault == "format":
        return store.put_new(f"{file.name}-bad", [b"junk" * 9])
    tensors = {name: array.copy() for name, array in decode(store.read(file), "").tensors.items()}
    if fault == "shapes":
        tensors["weight"] = np.zeros((2, 2), np.float32)
    elif fault == "names":
        del tensors["double"]
    else:
        tensors["weight"][-1, -1] = float(fault)
    return store.put_new(f"{file.name}-bad", encode(tensors, {}))


@pytest.fixture
def random() -> np.random.Generator:
    """Return a seeded generator."""
    return np.random.default_rng(7)
