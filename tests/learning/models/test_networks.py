"""Downpour's own networks."""

from __future__ import annotations

import torch
from torch import nn

from downpour.learning.models.networks import digits_cnn, mlp, mnist_cnn


def parameter_count(model: nn.Module) -> int:
    """Return the number of trainable numbers."""
    return sum(value.numel() for value in model.parameters())


def test_mnist_cnn_is_the_network_of_table_one() -> None:
    """1,199,882 parameters, and 9,216 inputs to the dense layer."""
    model = mnist_cnn((1, 28, 28), 10)
    assert parameter_count(model) == 1_199_882
    assert model.get_parameter("dense1.weight").shape == (128, 9216)


def test_pooling_before_relu_is_relu_before_pooling() -> None:
    """Values and gradients are those of the network as it is usually drawn."""
    model = digits_cnn((1, 8, 8), 10)
    layers = dict(model.named_children())
    order = ["conv1", "relu1", "conv2", "relu2", "pool", "flatten", "dense"]
    usual = nn.Sequential(*(layers[name] for name in order))
    x, weight = torch.randn(5, 1, 8, 8), model.get_parameter("conv1.weight")
    ours, theirs = (torch.autograd.grad(net(x).square().sum(), weight) for net in (model, usual))
    assert torch.equal(model(x), usual(x))
    assert torch.allclose(ours[0], theirs[0])


def test_mlp_takes_any_widths_and_none() -> None:
    """No hidden layer is a linear model; a single number is one layer."""
    assert parameter_count(mlp((4,), 3, hidden=[])) == 15
    assert mlp((2, 2), 3, hidden=[7])(torch.zeros(5, 2, 2)).shape == (5, 3)
