"""Python's and numpy's global generators, for networks that draw from them, and a lock for all.

Torch's own are handled where something is computed. These two hold much state that is slow to copy,
so it is never kept: they are seeded anew wherever what is drawn must be the same again.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from threading import RLock

import numpy as np
from numpy.random.mtrand import get_bit_generator, set_bit_generator

ALONE = RLock()
"""To be held while something draws from global generators: managers prepare in several threads."""

_LENT = np.random.MT19937(0)


@contextmanager
def lent() -> Iterator[None]:
    """Let code seed these generators and draw from them; then they are the process's own again."""
    python = random.getstate()
    # Copying the state of numpy's takes five times as long as lending it another generator.
    numpy = get_bit_generator()
    set_bit_generator(_LENT)
    try:
        yield
    finally:
        random.setstate(python)
        set_bit_generator(numpy)


def seed(number: int) -> None:
    """Seed both, from the low 64 bits of a number."""
    number &= (1 << 64) - 1
    random.seed(number)
    np.random.seed(number >> 32)  # noqa: NPY002 - it is the global one that is seeded
