"""One network in the memory of several: what one process writes, the other sees."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
import torch
from torch import nn

from downpour.learning.intra_worker.helper_process import SharedNetwork, create_memory


class Network(nn.Module):
    """Two layouts, a buffer, and a layer that a step may leave out."""

    def __init__(self, *, frozen: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv = nn.Conv2d(3, 4, 2)
        self.conv.weight.data = self.conv.weight.data.contiguous(memory_format=torch.channels_last)
        self.spare = nn.Linear(3, 1)
        self.spare.weight.requires_grad_(not frozen)
        self.scale = nn.Buffer(torch.tensor(3.0))

    def gradient(self) -> torch.Tensor:
        """Return a copy of the gradient of the convolution."""
        assert self.conv.weight.grad is not None
        return self.conv.weight.grad.clone()


@pytest.fixture
def memory() -> Iterator[int]:
    """Memory of this test's."""
    descriptor = create_memory()
    yield descriptor
    os.close(descriptor)


def test_both_see_the_same_parameters_and_buffers(memory: int) -> None:
    """Also what is written in place afterwards, and the strides stay."""
    mine, its = Network(), Network()
    its.conv.weight.data.zero_()
    SharedNetwork(mine, memory, 1).fill().attach()
    SharedNetwork(its, memory, 1).attach()
    with torch.no_grad():
        mine.conv.weight.mul_(2)
        mine.scale.add_(1)
    assert all(map(torch.equal, mine.state_dict().values(), its.state_dict().values()))
    assert its.conv.weight.stride() == Network().conv.weight.stride()
    assert its.scale == 4


def test_a_gradient_travels_and_is_added(memory: int) -> None:
    """It adds up with the own one, to the bit; what no one reached has none."""
    mine, its = Network(), Network()
    here = SharedNetwork(mine, memory, 2).fill().attach()
    there = SharedNetwork(its, memory, 2).attach()
    x = torch.randn(2, 3, 5, 5)
    its.conv(x).square().mean().backward()
    wanted = its.gradient()
    there.put(1)
    assert its.conv.weight.grad is None
    here.add(1)
    assert torch.equal(mine.gradient(), wanted)
    here.add(1)
    assert torch.equal(mine.gradient(), wanted + wanted)
    assert mine.spare.weight.grad is None


def test_a_frozen_parameter_has_no_gradient(memory: int) -> None:
    """Nor a place for one; its values are shared."""
    mine, its = Network(frozen=True), Network(frozen=True)
    here = SharedNetwork(mine, memory, 1).fill().attach()
    there = SharedNetwork(its, memory, 1).attach()
    its.spare(torch.ones(3)).sum().backward()
    there.put(0)
    here.add(0)
    assert mine.spare.weight.grad is None
    grad = mine.spare.bias.grad
    assert grad is not None
    assert torch.equal(grad, torch.ones(1))


def test_a_sparse_buffer_stays_with_each_process(memory: int) -> None:
    """It has no one piece of memory to share, and never changes; the rest is shared."""
    mine, its = Network(), Network()
    for network in (mine, its):
        network.register_buffer("edges", torch.eye(3).to_sparse(), persistent=False)
    SharedNetwork(mine, memory, 1).fill().attach()
    SharedNetwork(its, memory, 1).attach()
    with torch.no_grad():
        mine.conv.weight.mul_(2)
    assert torch.equal(mine.conv.weight, its.conv.weight)
    assert torch.equal(its.get_buffer("edges").to_dense(), torch.eye(3))
