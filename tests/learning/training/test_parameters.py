"""Parameters as arrays, and back, and a beginning from those of a file."""

import copy
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import nn

from downpour.base.errors import FileCorrupt, NonFinite, SpecError
from downpour.learning.training.parameters import (
    Arrays,
    begin_from,
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


class Net(nn.Module):
    """A body with statistics and a mask, a head, and a tensor under two names."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(4, 4)
        self.norm = nn.BatchNorm1d(4)
        self.head = nn.Linear(4, 3, bias=False)
        self.tied = self.head.weight
        self.register_buffer("mask", torch.full((2,), -torch.inf))


@pytest.fixture
def given() -> Arrays:
    """The parameters of such a network, as a final model's file holds them."""
    torch.manual_seed(1)
    arrays = parameters_of(Net())
    return {**arrays, "head.weight": arrays["tied"]}


def test_the_tensors_of_a_file_are_copied_with_buffers_and_masks(given: Arrays) -> None:
    """A whole file leaves nothing to say."""
    given["norm.running_mean"] += 3
    net = Net()
    assert begin_from(net, given, "f") == ()
    for name, array in parameters_of(net).items():
        np.testing.assert_array_equal(array, given[name])


def test_missing_tensors_keep_their_draw_and_extra_ones_are_remarked(given: Arrays) -> None:
    """As where a body begins from another network's, and the head is new."""
    for name in ("body.weight", "body.bias", "norm.weight", "norm.bias"):
        given[f"other.{name}"] = given.pop(name)
    net = Net()
    before = copy.deepcopy(net.body.weight)
    lacks, holds = begin_from(net, given, "f")
    assert lacks == (
        "f lacks body.bias, body.weight, norm.bias and 1 more, "
        "so these start with random values from the seed"
    )
    assert holds.startswith("f also holds other.body.bias, other.body.weight")
    assert torch.equal(net.body.weight, before)
    np.testing.assert_array_equal(net.head.weight.detach(), given["head.weight"])


def test_a_tied_tensor_needs_one_of_its_names(given: Arrays) -> None:
    """Other programs write it once."""
    del given["tied"]
    net = Net()
    assert begin_from(net, given, "f") == ()
    np.testing.assert_array_equal(net.tied.detach(), given["head.weight"])


@pytest.mark.parametrize("kind", [np.float16, np.float64])
def test_floats_of_another_width_are_converted(given: Arrays, kind: type) -> None:
    """Weights are often published in half precision."""
    given["body.weight"] = given["body.weight"].astype(kind)
    net = Net()
    assert begin_from(net, given, "f") == ()
    assert net.body.weight.dtype == torch.float32
    np.testing.assert_array_equal(net.body.weight.detach(), given["body.weight"].astype(np.float32))


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        (
            {"head.weight": np.zeros((5, 4), "f4")},
            r"head.weight has shape \[5, 4\] in it, but \[3, 4\] in",
        ),
        ({"body.bias": np.zeros(4, "i8")}, "body.bias is int64 in it, but float32 in the network"),
        ({"body.bias": np.full(4, np.nan, "f4")}, "body.bias holds NaN or infinity"),
        ({"body.bias": np.full(4, 1e300)}, "body.bias holds NaN or infinity as float32"),
        ({"norm.running_var": np.full(4, np.inf, "f4")}, "norm.running_var holds NaN or infinity"),
    ],
)
def test_a_tensor_that_does_not_fit_is_named(given: Arrays, changes: Arrays, reason: str) -> None:
    """By shape, type or values; a mask may be infinite where the network's own is."""
    with np.errstate(over="ignore"), pytest.raises(SpecError, match=f"^init_from = 'f': {reason}"):
        begin_from(Net(), {**given, **changes}, "f")


def test_a_file_of_another_network_is_refused(given: Arrays) -> None:
    """No name is known: the first ones of both sides are named."""
    other = {f"module.{name}": array for name, array in given.items()}
    with pytest.raises(SpecError) as refused:
        begin_from(Net(), other, "f")
    assert str(refused.value).startswith(
        "init_from = 'f': belongs to another network: it has module.body.bias, module.body.weight, "
    )
