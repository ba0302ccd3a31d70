"""What surrounds a computation: threads, generators, memory errors."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from downpour.errors import FileCorrupt, OutOfMemory
from downpour.spec import Spec
from downpour.training.numerics import Randomness, settings


def test_a_lack_of_memory_is_called_by_its_name() -> None:
    """What torch says of an allocation that cannot be becomes OutOfMemory, in one line."""
    with pytest.raises(OutOfMemory) as error, settings(Spec.make({})):
        torch.empty(1 << 58)
    assert "\n" not in str(error.value)


def test_other_errors_pass() -> None:
    """A defect stays what it is."""
    with pytest.raises(RuntimeError, match="shape"), settings(Spec.make({})):
        torch.zeros(3).reshape(2)


def test_threads_are_the_spec_s_inside_and_the_process_s_outside() -> None:
    """Also after an error."""
    outside, inside = torch.get_num_threads(), []

    def fail() -> None:
        with settings(Spec.make({"threads": 2})):
            inside.append(torch.get_num_threads())
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert inside == [2]
    assert torch.get_num_threads() == outside


def test_two_streams_do_not_disturb_each_other() -> None:
    """Drawing in turns gives what drawing alone gives; a saved state repeats."""
    one, two = Randomness(1, "cpu"), Randomness(1, "cpu")
    drawn = []
    for _ in range(3):
        with one.active():
            drawn.append(torch.rand(2))
        torch.rand(5)
    with two.active():
        together = torch.rand(2), torch.rand(2), torch.rand(2)
    assert all(torch.equal(a, b) for a, b in zip(drawn, together, strict=True))
    two.restore(one.arrays())
    with one.active(), two.active():
        second = torch.rand(3)
    with two.active():
        assert not torch.equal(torch.rand(3), second)


def test_a_state_that_is_none_is_refused() -> None:
    """Another size, or another kind of device."""
    for wrong in ({}, {"cpu": np.zeros(3, np.uint8)}, {"cuda": np.zeros(16, np.uint8)}):
        with pytest.raises(FileCorrupt):
            Randomness(1, "cpu").restore(wrong)
