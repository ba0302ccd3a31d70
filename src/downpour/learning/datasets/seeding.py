"""Seeded orders that never change.

Built on the raw words of PCG64 alone, which numpy promises never to change; what its `Generator`
draws from them may change with numpy's version, and is not used.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

HELD_OUT_EVERY = 5


def random_order(count: int, *words: int) -> NDArray[np.int64]:
    """Return the permutation of 0..count-1 that follows from non-negative integers."""
    generator = np.random.PCG64(np.random.SeedSequence(words))
    return np.argsort(generator.random_raw(count), kind="stable").astype(np.int64, copy=False)


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
