"""Networks and examples draw from seeded generators, and others notice nothing of it."""

from __future__ import annotations

import random

import numpy as np
import torch

from downpour.learning import numerics


def test_draws_are_those_of_a_manual_seed_and_the_state_before_comes_back() -> None:
    """So models of earlier versions are drawn alike."""
    torch.manual_seed(7)
    drawn = torch.rand(3)
    torch.manual_seed(1)
    following = torch.rand(3)
    torch.manual_seed(1)
    with numerics.seeded(7):
        assert torch.equal(torch.rand(3), drawn)
        first = random.random(), np.random.rand()  # noqa: NPY002 - it is the global one
    with numerics.seeded(7):
        assert (random.random(), np.random.rand()) == first  # noqa: NPY002
    assert torch.equal(torch.rand(3), following)


def test_seeding_again_and_again_takes_no_memory() -> None:
    """Torch would keep a call, with its stack, for every kind of device that was never used."""
    before = len(torch.cuda._queued_calls)
    for number in range(3):
        with numerics.seeded(number):
            pass
    if not torch.cuda.is_available():
        assert len(torch.cuda._queued_calls) == before
