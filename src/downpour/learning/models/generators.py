"""Python's and numpy's global generators, for networks that draw from them, and a lock for all.

Torch's own generators are set where a step is computed. These two have much state that is slow to
copy, so it is never saved: they are seeded again wherever draws must repeat.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from threading import RLock
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from numpy.random.mtrand import get_bit_generator, set_bit_generator

from downpour.learning import accelerators

ALONE = RLock()
"""Held while code draws from global generators, because a manager prepares in several threads."""

_LENT = np.random.MT19937(0)


@contextmanager
def lent() -> Iterator[None]:
    """Return a context in which code may seed these generators; it restores their state."""
    python = random.getstate()
    # Copying the state of numpy's takes five times as long as lending it another generator. If
    # that is lent already, as when a step opens its examples, we can only copy.
    numpy = get_bit_generator()
    state = _LENT.state if numpy is _LENT else None
    set_bit_generator(_LENT)
    try:
        yield
    finally:
        random.setstate(python)
        set_bit_generator(numpy)
        if state is not None:
            _LENT.state = state


@contextmanager
def seeded(number: int) -> Iterator[None]:
    """Return a context in which all global generators are seeded, and no other code draws."""
    with ALONE, lent(), torch.random.fork_rng(devices=[]), accelerators.seeded(number):
        # Not `torch.manual_seed`: for each kind of device that was never used it keeps the stack
        # of the call, to seed it later. That takes a hundred times as long and is never freed.
        torch.default_generator.manual_seed(number)
        seed(number)
        yield


class States(NamedTuple):
    """The states of torch's generator on the CPU, Python's and numpy's; equal if none has drawn."""

    torch: bytes
    python: tuple[Any, ...]
    numpy: tuple[Any, ...]

    @classmethod
    def now(cls) -> Self:
        """Take the present ones."""
        kind, keys, *rest = np.random.get_state()  # noqa: NPY002
        numpy = kind, np.asarray(keys).tobytes(), *rest
        return cls(torch.get_rng_state().numpy().tobytes(), random.getstate(), numpy)

    def restore(self) -> None:
        """Set them."""
        torch.set_rng_state(torch.frombuffer(bytearray(self.torch), dtype=torch.uint8))
        random.setstate(self.python)
        kind, keys, *rest = self.numpy
        np.random.set_state((kind, np.frombuffer(keys, np.uint32), *rest))  # noqa: NPY002


def seed(number: int) -> None:
    """Seed both generators from the low 64 bits of a number."""
    number &= (1 << 64) - 1
    random.seed(number)
    # numpy's seed has 32 bits: the high ones.
    np.random.seed(number >> 32)  # noqa: NPY002 - it is the global one that is seeded
