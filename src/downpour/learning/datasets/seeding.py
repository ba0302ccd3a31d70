"""Seeded orders that never change.

Built on the raw words of PCG64 alone, which numpy promises never to change; what its `Generator`
draws from them may change with numpy's version, and is not used.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

HELD_OUT_EVERY = 5
_BLOCK = 1 << 20


def random_order(count: int, *words: int, first: int | None = None) -> NDArray[np.int64]:
    """Return the permutation of 0..count-1 that follows from non-negative integers.

    With `first`, return only so many numbers at its beginning, in memory for a few times as many.
    """
    generator = np.random.PCG64(np.random.SeedSequence(words))
    if first is None or first >= count:
        return np.argsort(generator.random_raw(count), kind="stable").astype(np.int64, copy=False)
    block = max(first, _BLOCK)
    lowest, places = np.empty(0, np.uint64), np.empty(0, np.int64)
    for start in range(0, count, block):
        stop = min(start + block, count)
        drawn = np.concatenate([lowest, generator.random_raw(stop - start)])
        order = np.argsort(drawn, kind="stable")[:first]
        lowest, places = drawn[order], np.concatenate([places, np.arange(start, stop)])[order]
    return places


def held_out(labels: NDArray[np.int64] | None, count: int) -> tuple[NDArray[np.int64], ...]:
    """Cut a set without a test part into training and test indices, four to one, by class.

    The cut does not depend on the experiment's seed, so that runs can be compared.
    Both parts come in random order, so that the first few of them are a fair sample.
    """
    order = random_order(count, HELD_OUT_EVERY, count)
    by_class = order if labels is None else order[np.argsort(labels[order], kind="stable")]
    chosen = np.zeros(count, dtype=bool)
    chosen[by_class[HELD_OUT_EVERY - 1 :: HELD_OUT_EVERY]] = True
    return order[~chosen[order]], order[chosen[order]]
