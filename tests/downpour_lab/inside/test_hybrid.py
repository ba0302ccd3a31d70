"""Dense layers in slices: the same gradient, but for rounding."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from downpour.core.spec import Spec
from downpour.learning import numerics
from downpour.learning.datasets import PreparedDataset
from downpour.learning.tasks.loaded import LoadedTask, load
from downpour.learning.training.step import batch_parts
from downpour_lab.inside.hybrid import HybridStep, Share
from tests.learning.training.conftest import BASE, started

FIELDS = {**BASE, "model_options": {"dropout": 0.0, "dropout2": 0.0}}


def hybrid(dataset: PreparedDataset, processes: int, **fields: Any) -> LoadedTask:
    """A task whose dense layers are cut."""
    inside = {"processes": processes, "how": "hybrid"}
    return load(Spec.make({**FIELDS, "inside": inside, **fields}), dataset)


def seed(part: int) -> None:
    """Set torch's generator for a part."""
    torch.manual_seed(part)


def gradient(loaded: LoadedTask, size: int) -> tuple[Tensor, list[Tensor]]:
    """The loss of the first examples, and its gradient."""
    network = loaded.network()
    numerics.place(network, loaded.spec, images=loaded.images)
    parts = batch_parts(np.arange(size), loaded.spec.parts)
    losses = HybridStep(loaded, network).gradient_of(parts, seed, Share())
    return torch.stack(losses).sum(), [v.grad for v in network.parameters() if v.grad is not None]


@pytest.mark.parametrize("processes", [2, 5])
@pytest.mark.parametrize("model", ["mnist-cnn", "digits-cnn", "mlp"])
@pytest.mark.parametrize("size", [16, 1])
def test_slices_change_the_gradient_by_rounding_alone(
    dataset: PreparedDataset, model: str, processes: int, size: int
) -> None:
    """The loss is the mean over all examples, however they are cut; also where parts are few."""
    fields = {"model": model, **({} if model == "mnist-cnn" else {"model_options": {}})}
    loss, sliced = gradient(hybrid(dataset, processes, **fields), size)
    loaded = load(Spec.make({**FIELDS, **fields}), dataset)
    network = loaded.network()
    whole = loaded.task.loss(network.train(), loaded.batch("train", np.arange(size)))
    assert isinstance(whole, torch.Tensor)
    whole.backward()  # type: ignore[no-untyped-call]
    assert loss.item() == pytest.approx(whole.item(), rel=1e-5)
    for one, value in zip(sliced, network.parameters(), strict=True):
        assert value.grad is not None
        torch.testing.assert_close(one, value.grad, rtol=1e-4, atol=1e-6)


def test_a_training_learns(dataset: PreparedDataset) -> None:
    """With dropout, which draws for the whole batch between dense layers."""
    fields = {"inside": {"processes": 2, "how": "hybrid"}}
    training = started(dataset, fields)
    training.advance(1)
    first = training.mean_loss
    for round_ in range(8):
        training = started(dataset, {**fields, "learning_rate": 0.1}, round_=round_)
        training.advance(training.steps_total)
    assert training.mean_loss < first


def test_parameters_that_are_frozen_have_no_gradient(dataset: PreparedDataset) -> None:
    """Neither those of slices nor those before; the others' are as they would be."""
    loaded = hybrid(dataset, 2)
    network = loaded.network()
    frozen = {"conv1.weight", "conv1.bias", "dense1.weight"}
    for name, value in network.named_parameters():
        value.requires_grad = name not in frozen
    parts = batch_parts(np.arange(16), 2)
    HybridStep(loaded, network).gradient_of(parts, seed, Share())
    missing = {name for name, value in network.named_parameters() if value.grad is None}
    assert missing == frozen
