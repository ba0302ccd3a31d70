"""Contributions to aggregate, with and without files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import pytest

from downpour.base.values import PublishedFile
from downpour.files.aggregators import Contribution
from downpour.files.store import Array, Store, encode


class Contribute(Protocol):
    """Publishes one update a shard and returns what they contribute."""

    def __call__(
        self, store: Store, updates: Sequence[Mapping[str, Array]], prefix: str = "update"
    ) -> list[Contribution]:
        """Shards are counted from 0; samples and losses differ among them."""
        ...


class Imagine(Protocol):
    """Makes a contribution whose file is never read."""

    def __call__(self, shard: int, **facts: Any) -> Contribution:
        """Samples are 1 and the loss is 1 unless told."""
        ...


def contribution_of(shard: int, file: PublishedFile) -> Contribution:
    """Return what a shard contributes; samples and losses differ among shards."""
    return Contribution(shard=shard, samples=10 + shard, loss=1.0 + shard, file=file)


@pytest.fixture
def contribute() -> Contribute:
    """Return the publisher of updates."""

    def publish(
        store: Store, updates: Sequence[Mapping[str, Array]], prefix: str = "update"
    ) -> list[Contribution]:
        return [
            contribution_of(
                shard, store.put_new(f"{prefix}-{shard}", encode(update, {"shard": str(shard)}))
            )
            for shard, update in enumerate(updates)
        ]

    return publish


@pytest.fixture
def imagine() -> Imagine:
    """Return the maker of contributions without files."""

    def make(shard: int, **facts: Any) -> Contribution:
        file = PublishedFile(name=f"update-{shard}", size_bytes=0, checksum="")
        known: dict[str, Any] = {"shard": shard, "samples": 1, "loss": 1.0, "file": file}
        return Contribution(**(known | facts))

    return make


@pytest.fixture
def random() -> np.random.Generator:
    """Return a seeded generator."""
    return np.random.default_rng(7)
