"""Optimizers, and their state as arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from downpour.base.errors import FileCorrupt
from downpour.base.values import DatasetFacts
from downpour.core.spec import Spec
from downpour.learning.tasks.agreement import TaskData
from downpour.learning.tasks.loaded import LoadedTask
from downpour.learning.tasks.task import Task
from downpour.learning.training.optimizers import OPTIMIZERS, Optimizers

FACTS = DatasetFacts(
    train_samples=1, test_samples=1, sample_shape=(), classes=0, targets_per_sample=0
)


def optimizers_of(model: nn.Module, spec: Spec, task: Task | None = None) -> Optimizers:
    """Return the optimizers of a task, by default one that leaves all to the spec."""
    data = TaskData(facts=FACTS, labels=None, sketches={})
    return Optimizers(LoadedTask(spec.replace(device="cpu"), task or Task(), data), model)


def one_step(model: nn.Module, optimizer: torch.optim.Optimizer | Optimizers) -> None:
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
    fused = optimizers_of(ours, spec)
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
    optimizer = optimizers_of(model, Spec.make({"optimizer": name, "momentum": 0.9}))
    one_step(model, optimizer)
    assert {key.split("/")[0] for key in optimizer.arrays()} == {"weight"}
    assert torch.equal(model.bias, before)


def test_without_momentum_there_is_no_state() -> None:
    """Plain gradient descent remembers nothing, so no file is needed."""
    model = nn.Linear(3, 2)
    optimizer = optimizers_of(model, Spec.make({"momentum": 0.0}))
    one_step(model, optimizer)
    assert optimizer.arrays() == {}


@pytest.mark.parametrize("name", ["weight/momentum_buffer", "elsewhere/momentum_buffer", "step"])
def test_a_state_of_another_network_is_refused(name: str) -> None:
    """A wrong shape or an unknown parameter."""
    model = nn.Linear(3, 2)
    optimizer = optimizers_of(model, Spec.make({"momentum": 0.9}))
    with pytest.raises(FileCorrupt):
        optimizer.load({name: np.zeros(7, np.float32)})


class Branches(nn.Module):
    """Two layers, of which the second is used from the second call on."""

    def __init__(self) -> None:
        super().__init__()
        self.early, self.late = nn.Linear(3, 1), nn.Linear(3, 1)

    def forward(self, x: Tensor, *, both: bool) -> Tensor:
        early: Tensor = self.early(x)
        return early + self.late(x) if both else early


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_parameter_may_get_its_first_gradient_late(name: str) -> None:
    """As with stochastic depth or experts; the numbers are those of torch's plain optimizer."""
    ours, theirs = Branches(), Branches()
    theirs.load_state_dict(ours.state_dict())
    spec = Spec.make({"optimizer": name, "learning_rate": 0.1})
    fused = optimizers_of(ours, spec)
    plain = optimizers_of(theirs, spec).by_name["optimizer"]
    plain.state.clear()
    plain.param_groups[0]["fused"] = False
    for both in (False, True, True):
        both_worlds: tuple[tuple[Branches, Any], ...] = ((ours, fused), (theirs, plain))
        for model, optimizer in both_worlds:
            optimizer.zero_grad()
            model(torch.ones(2, 3), both=both).sum().backward()
            optimizer.step()
    for mine, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        assert torch.allclose(mine, other, atol=1e-6)
