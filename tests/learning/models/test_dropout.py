"""Dropout from fewer random numbers."""

from __future__ import annotations

import pytest
import torch

from downpour.learning.models.networks import Dropout


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("p", [0.1, 0.25, 0.5, 0.9])
def test_the_share_and_the_scale_are_those_of_dropout(p: float, dtype: torch.dtype) -> None:
    """A share p is zero, the rest is scaled by 1 / (1 - p)."""
    torch.manual_seed(3)
    output = Dropout(p)(torch.ones(300, 1001, dtype=dtype))
    assert float((output == 0).float().mean()) == pytest.approx(p, abs=0.005)
    kept = output[output != 0].float()
    assert float(kept.mean()) == pytest.approx(1 / (1 - p), rel=0.01)
    assert kept.min() == kept.max()


def test_the_generator_decides_the_mask() -> None:
    """The same generator state gives the same mask, and the next call another one."""
    x, layer = torch.ones(64, 64), Dropout(0.5)
    state = torch.get_rng_state()
    first, second = layer(x), layer(x)
    torch.set_rng_state(state)
    assert torch.equal(layer(x), first)
    assert not torch.equal(first, second)


def test_neighbors_are_independent() -> None:
    """The four decisions that share a random word have nothing to do with each other."""
    torch.manual_seed(4)
    kept = (Dropout(0.5)(torch.ones(40_000, 4)) != 0).float()
    correlation = torch.corrcoef(kept.T) - torch.eye(4)
    assert float(correlation.abs().max()) < 0.03


def test_nothing_is_dropped_in_evaluation_or_at_zero() -> None:
    """The input itself comes back."""
    x = torch.ones(10)
    assert Dropout(0.5).eval()(x) is x
    assert Dropout(0.0)(x) is x


def test_gradients_flow_through_what_was_kept() -> None:
    """The gradient is the mask, scaled; empty inputs are no trouble."""
    x = torch.ones(50, requires_grad=True)
    output = Dropout(0.25)(x)
    output.sum().backward()
    assert x.grad is not None
    assert torch.equal(x.grad, output.detach())
    assert Dropout(0.25)(torch.ones(0)).numel() == 0
