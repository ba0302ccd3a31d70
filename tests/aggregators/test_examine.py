"""What is wrong with which update; the faults themselves are tried in `test_fold`."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from downpour.aggregators.examine import examine
from downpour.store import Array, MemoryStore


def test_nothing_is_wrong_with_good_updates(contribute: Any) -> None:
    """An innocent round has no reasons."""
    store = MemoryStore()
    parts = contribute(store, [{"w": np.zeros(3)}] * 3)
    assert examine(store, parts, None, known={}) == {}


def test_what_is_known_is_not_looked_at_again(contribute: Any) -> None:
    """A shard with a reason keeps it, and costs no second wait."""
    store = MemoryStore()
    parts = contribute(store, [{"w": np.zeros(3)}] * 2)
    store.delete(parts[1].file.name)
    assert examine(store, parts, None, known={1: "gone"}) == {1: "gone"}


def test_most_of_them_decide_and_a_tie_goes_to_the_lowest_shard(contribute: Any) -> None:
    """Without a reference, the layout of the most is right."""
    store = MemoryStore()
    parts = contribute(store, [{"w": np.zeros(n)} for n in (3, 4, 4)], "three")
    assert set(examine(store, parts, None, known={})) == {0}
    parts = contribute(store, [{"w": np.zeros(n)} for n in (3, 4)], "two")
    assert set(examine(store, parts, None, known={})) == {1}


@pytest.mark.parametrize(
    ("tensors", "told"),
    [
        ({"w": np.zeros(4)}, "'w' is float64 [4], not float64 [3]"),
        ({"w": np.zeros(3, np.float32)}, "'w' is float32 [3], not float64 [3]"),
        ({}, "'w' is missing"),
        ({"w": np.zeros(3), "x": np.zeros(3)}, "'x' is too many"),
    ],
)
def test_differences_are_told(contribute: Any, tensors: dict[str, Array], told: str) -> None:
    """The first tensor that differs is named, with what it is and what it should be."""
    store = MemoryStore()
    parts = contribute(store, [{"w": np.zeros(3)}, tensors])
    assert told in examine(store, parts, None, known={})[1]
