"""Beginning from a file's parameters: names decide, and nothing is passed over in silence."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from torch import nn

from downpour.base.errors import SpecError
from downpour.learning.training.loop import begin_from
from downpour.learning.training.parameters import Arrays, parameters_of


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
