"""Optimizers, and their state as arrays."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from downpour.errors import FileCorrupt
from downpour.spec import Spec
from downpour.training.optimizers import (
    OPTIMIZERS,
    load_optimizer,
    make_optimizer,
    optimizer_arrays,
)


def one_step(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Step on the gradient of the parameters' squares."""
    optimizer.zero_grad()
    sum((value**2).sum() for value in model.parameters()).backward()  # type: ignore[union-attr]
    optimizer.step()


@pytest.mark.parametrize(
    ("name", "reference"),
    [("sgd", torch.optim.SGD), ("adam", torch.optim.Adam), ("adamw", torch.optim.AdamW)],
)
def test_they_are_the_optimizers_of_their_names(
    name: str, reference: type[torch.optim.Optimizer]
) -> None:
    """Three steps agree with torch's plain implementation."""
    spec = Spec.make({"optimizer": name, "learning_rate": 0.1, "momentum": 0.0})
    ours, theirs = nn.Linear(5, 4), nn.Linear(5, 4)
    theirs.load_state_dict(ours.state_dict())
    plain = reference(theirs.parameters(), lr=0.1, weight_decay=0.0)  # type: ignore[call-arg]
    fused = make_optimizer(ours, spec)
    for _ in range(3):
        one_step(ours, fused)
        one_step(theirs, plain)
    assert torch.allclose(ours.weight, theirs.weight, atol=1e-6)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_frozen_parameter_has_no_state_and_stays(name: str) -> None:
    """Only trainable parameters are named in the arrays."""
    model = nn.Linear(3, 2)
    model.bias.requires_grad = False
    before = model.bias.clone()
    optimizer = make_optimizer(model, Spec.make({"optimizer": name, "momentum": 0.9}))
    one_step(model, optimizer)
    assert {key.split("/")[0] for key in optimizer_arrays(optimizer, model)} == {"weight"}
    assert torch.equal(model.bias, before)


def test_without_momentum_there_is_no_state() -> None:
    """Plain gradient descent remembers nothing, so no file is needed."""
    model = nn.Linear(3, 2)
    optimizer = make_optimizer(model, Spec.make({"momentum": 0.0}))
    one_step(model, optimizer)
    assert optimizer_arrays(optimizer, model) == {}


@pytest.mark.parametrize("name", ["weight/momentum_buffer", "elsewhere/momentum_buffer", "step"])
def test_a_state_of_another_network_is_refused(name: str) -> None:
    """A wrong shape or an unknown parameter."""
    model = nn.Linear(3, 2)
    optimizer = make_optimizer(model, Spec.make({"momentum": 0.9}))
    with pytest.raises(FileCorrupt):
        load_optimizer(optimizer, model, {name: np.zeros(7, np.float32)})


class Branches(nn.Module):
    """Two layers, of which the second is used from the second call on."""

    def __init__(self) -> None:
        super().__init__()
        self.early, self.late = nn.Linear(3, 1), nn.Linear(3, 1)

    def forward(self, x: Tensor, *, both: bool) -> Tensor:
        """Return a number an example."""
        early: Tensor = self.early(x)
        return early + self.late(x) if both else early


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_parameter_may_get_its_first_gradient_late(name: str) -> None:
    """As with stochastic depth or experts; the numbers are those of torch's plain optimizer."""
    ours, theirs = Branches(), Branches()
    theirs.load_state_dict(ours.state_dict())
    spec = Spec.make({"optimizer": name, "learning_rate": 0.1})
    fused, plain = make_optimizer(ours, spec), make_optimizer(theirs, spec)
    plain.state.clear()
    plain.param_groups[0]["fused"] = False
    for both in (False, True, True):
        for model, optimizer in ((ours, fused), (theirs, plain)):
            optimizer.zero_grad(set_to_none=True)
            model(torch.ones(2, 3), both=both).sum().backward()
            optimizer.step()
    for mine, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        assert torch.allclose(mine, other, atol=1e-6)
