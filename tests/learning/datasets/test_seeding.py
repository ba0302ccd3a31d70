"""Orders that never change."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from downpour.learning.datasets.source import held_out, random_order


def test_an_order_is_pinned() -> None:
    """These numbers may not change with any version of numpy, or old experiments cannot repeat."""
    assert random_order(8, 1, 2, 3).tolist() == [1, 3, 7, 5, 2, 0, 4, 6]


@given(st.integers(0, 200), st.integers(0, 2**63 - 1))
def test_an_order_is_a_permutation(count: int, seed: int) -> None:
    """Every position appears once."""
    assert np.array_equal(np.sort(random_order(count, seed)), np.arange(count))


@pytest.mark.slow
def test_the_beginning_of_an_order_takes_no_memory_for_the_rest() -> None:
    """It is that of the whole order, and found among millions in a few megabytes."""
    count = 3_000_000
    whole = random_order(count, 1, 2)
    for first in (1, 1000, count // 2, count, count + 1):
        assert np.array_equal(random_order(count, 1, 2, first=first), whole[:first])
    tracemalloc.start()
    random_order(count, 1, 2, first=10)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 16 * count


@given(st.lists(st.integers(0, 5), max_size=120))
def test_a_fifth_of_every_class_is_held_out(classes: list[int]) -> None:
    """Both parts together are the whole, and no class is off by a whole example."""
    labels = np.asarray(classes, dtype=np.int64)
    train, test = held_out(labels, len(labels))
    assert np.array_equal(np.sort(np.concatenate([train, test])), np.arange(len(labels)))
    for label in set(classes):
        share = np.sum(labels == label) / 5
        assert abs(np.sum(labels[test] == label) - share) < 1
