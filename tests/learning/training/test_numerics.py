"""What surrounds a computation: threads, generators, memory errors."""

from __future__ import annotations

import pytest
import torch

from downpour.base.errors import OutOfMemory
from downpour.core.spec import Spec
from downpour.learning.training.numerics import Randomness, settings


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


def test_a_step_draws_the_same_wherever_it_is_taken() -> None:
    """Its generators follow from the task's seed and its number; the process's own go on."""
    one, two = Randomness(1, "cpu"), Randomness(1, "cpu")
    torch.manual_seed(3)
    outside = torch.get_rng_state()
    drawn = []
    for step in range(3):
        with one.active():
            one.begin(step)
            drawn.append(torch.rand(2))
    assert torch.equal(torch.get_rng_state(), outside)
    with two.active():
        two.begin(2)
        assert torch.equal(torch.rand(2), drawn[2])
    assert not torch.equal(drawn[0], drawn[1])
