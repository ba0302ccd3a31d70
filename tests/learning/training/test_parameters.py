"""Parameters as arrays, and back."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import nn

from downpour.base.errors import FileCorrupt, NonFinite
from downpour.learning.training.parameters import (
    check_finite,
    infinite_constants,
    is_finite,
    load_parameters,
    parameters_of,
)

from .conftest import same_bytes


def network() -> nn.Module:
    """Return a network with buffers, one of them an integer without dimensions."""
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)).to(
        memory_format=torch.channels_last
    )


def test_parameters_load_into_another_network() -> None:
    """Names, types, shapes and bits agree for every memory layout, read-only or not."""
    source, target = network(), network()
    arrays = parameters_of(source)
    assert arrays["1.num_batches_tracked"].shape == ()
    assert all(array.flags.c_contiguous for array in arrays.values())
    for array in arrays.values():
        array.flags.writeable = False
    load_parameters(target, arrays)
    assert same_bytes(parameters_of(target), arrays)


@pytest.mark.parametrize(
    "change",
    [
        {"0.weight": np.zeros((4, 3, 3, 2), np.float32)},
        {"0.weight": np.zeros((4, 3, 3, 3), np.float64)},
        {"extra": np.zeros(1, np.float32)},
    ],
)
def test_arrays_of_another_network_are_refused(change: dict[str, NDArray[Any]]) -> None:
    """Another shape, another type or another name."""
    with pytest.raises(FileCorrupt, match=next(iter(change))):
        load_parameters(network(), {**parameters_of(network()), **change})


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_non_finite_parameter_is_named(value: float) -> None:
    """The parameter's name stands in the error; integers are always finite."""
    check_finite({"count": np.array(3)})
    with pytest.raises(NonFinite, match="weight"):
        check_finite({"weight": np.array([1.0, value])})


def test_a_trained_parameter_is_no_constant() -> None:
    """A buffer or a frozen parameter that holds infinities is one; a trainable parameter is not."""
    model = network()
    model.register_buffer("mask", torch.tensor([0.0, -torch.inf]))
    with torch.no_grad():
        for value in model.parameters():
            value.fill_(torch.nan)
    model[0].bias.requires_grad = False  # type: ignore[index]
    assert infinite_constants(model).keys() == {"mask", "0.bias"}


def test_memory_that_is_not_copied_changes_with_the_network() -> None:
    """Buffers too, whose storage may still be resized; other layouts are copied after all."""
    norm = nn.BatchNorm2d(2)
    model = nn.Sequential(norm, nn.Conv2d(2, 3, 2)).to(memory_format=torch.channels_last)
    copied, seen = parameters_of(model), parameters_of(model, copy=False)
    assert same_bytes(seen, copied)
    with torch.no_grad():
        for value in (*model.parameters(), *model.buffers()):
            value.add_(1)
    moved = {name for name in seen if not np.array_equal(seen[name], copied[name])}
    assert moved == seen.keys() - {"1.weight"}
    with pytest.raises(ValueError, match="read-only"):
        seen["0.running_mean"][0] = 5
    assert norm.running_mean is not None
    norm.running_mean.untyped_storage().resize_(64)


def test_a_tied_weight_is_no_constant() -> None:
    """It is trained under its first name, so it isn't scanned at every task under its second."""
    first, second = nn.Linear(2, 2), nn.Linear(2, 2)
    second.weight = first.weight
    with torch.no_grad():
        first.weight[0, 0] = float("inf")
    assert infinite_constants(nn.Sequential(first, second)) == {}


def test_numbers_whose_sum_overflows_are_finite() -> None:
    """The quick look at a sum decides nothing by itself."""
    largest = np.finfo(np.float32).max
    assert is_finite(np.array([largest, largest], np.float32))
    assert is_finite(np.array([], np.float32))
    assert not is_finite(np.array([1, np.inf, -np.inf], np.float32))
    assert not is_finite(np.array([1, np.nan], np.float16))
