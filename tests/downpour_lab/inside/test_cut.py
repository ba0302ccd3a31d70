"""Where networks can be cut, and that a cut changes no byte."""

import random
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from downpour.base.errors import SpecError
from downpour.core.spec import Spec
from downpour.learning.datasets import PreparedDataset
from downpour.learning.numerics import ALONE
from downpour.learning.training.step import batch_parts, cutting
from downpour_lab.inside.cut import Probe, balanced, layers_of, probed, stages_of
from downpour_lab.inside.links import exact_copy
from tests.learning.training.conftest import BASE, with_network


class Block(nn.Module):
    """Two ways that meet again."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = nn.Conv2d(4, 4, 3, padding=1), nn.Conv2d(4, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        summed: Tensor = self.one(x) + self.other(x)
        return summed


class Residual(nn.Module):
    """Blocks between other layers, with functions on the way; the head begins in place."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, 4, 3)
        self.blocks = nn.Sequential(Block(), nn.ReLU(inplace=True), Block())
        self.head = nn.Sequential(nn.ReLU(inplace=True), nn.Dropout(0.2), nn.Linear(4, 4))

    def forward(self, x: Tensor) -> Tensor:
        maps = self.blocks(self.stem(x).tanh())
        shown: Tensor = self.head(maps.mean((2, 3)))
        return shown


class Tied(nn.Sequential):
    """Uses its first layer again in the middle."""

    def __init__(self) -> None:
        square = nn.Linear(64, 64)
        super().__init__(nn.Flatten(), square, nn.Tanh(), square, nn.Tanh(), nn.Linear(64, 4))


class Whole(nn.Module):
    """Has no place to be cut at: the input is used to the end."""

    def __init__(self) -> None:
        super().__init__()
        self.dense = nn.Linear(64, 4)

    def forward(self, x: Tensor) -> Tensor:
        shown: Tensor = self.dense(x.flatten(1)) + x.sum()
        return shown


class Chancy(nn.Module):
    """Draws in the middle of its forward, which cannot be seen from outside."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden, self.dense = nn.Linear(64, 8), nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        shown: Tensor = self.dense(torch.tanh(self.hidden(x.flatten(1))) * random.random())
        return shown


def names(network: nn.Module) -> list[str]:
    """The names of a network's layers."""
    with ALONE:
        return [layer.name for layer in layers_of(network)]


def pipeline(processes: int, *cut: str) -> dict[str, Any]:
    """The fields of a pipeline."""
    return {"inside": {"processes": processes, "how": "pipeline", "cut": list(cut)}}


def check(dataset: PreparedDataset, network: Callable[[], nn.Module], **fields: Any) -> None:
    """Check a network, as at submission."""
    spec = Spec.make({**BASE, "model": "lab:Net", **fields})
    cutting(spec).check(with_network(spec, dataset, network), batch_parts(np.arange(16), 2)[0])


def test_layers_lie_between_places_that_one_tensor_crosses() -> None:
    """A block with two ways is one layer; functions and sequences are seen through."""
    assert names(Residual()) == [
        "stem",
        "tanh",
        *("blocks.0", "blocks.1", "blocks.2"),
        "mean",
        *("head.0", "head.1", "head.2"),
    ]
    assert names(nn.Sequential(nn.Sequential(nn.Linear(3, 2)))) == ["0.0"]
    assert names(nn.Linear(3, 2)) == [""]


def test_layers_run_one_after_the_other_are_the_network() -> None:
    """Their parameters are all that it has."""
    network, x = Residual().eval(), torch.randn(3, 1, 8, 8)
    with ALONE:
        layers = layers_of(network)
    passed = x
    for layer in layers:
        passed = layer.run(passed)
    assert torch.equal(passed, network(x))
    found = {id(value) for layer in layers for value in layer.parameters}
    assert found == {id(value) for value in network.parameters()}


@pytest.mark.parametrize("network", [Residual, Tied])
def test_networks_with_places_to_cut_pass(
    dataset: PreparedDataset, network: type[nn.Module]
) -> None:
    """Run layer by layer they give the same loss and gradients, to the bit."""
    check(dataset, network, **pipeline(2))


@pytest.mark.parametrize("model", ["digits-cnn", "mnist-cnn", "mlp"])
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_own_networks_can_be_cut(dataset: PreparedDataset, model: str, precision: str) -> None:
    """Between any two of their modules."""
    from downpour.learning.tasks.loaded import load

    spec = Spec.make({**BASE, "model": model, "precision": precision, **pipeline(2)})
    loaded = load(spec, dataset)
    part = batch_parts(np.arange(16), 2)[0]
    cutting(spec).check(loaded, part)
    network = loaded.network()
    assert len(probed(loaded, network, part).points) == len(names(network)) - 1
    assert all(value.grad is None for value in network.parameters())


@pytest.mark.parametrize(
    ("network", "fields", "line"),
    [
        (Whole, pipeline(2), "inside.how = 'pipeline': lab:Net cannot be cut: it needs a place"),
        (
            Chancy,
            pipeline(2),
            "inside.how = 'pipeline': lab:Net gives different bytes layer by layer",
        ),
        (Tied, pipeline(5), "inside.processes = 5: lab:Net can be cut into 4 stages at most"),
        (
            Residual,
            pipeline(2, "blocks.3"),
            "inside.cut = ['blocks.3']: no stage can begin with 'blocks.3'; the nearest possible",
        ),
        (Tied, pipeline(2, "3"), "no stage can begin with '3'"),
        (
            Residual,
            pipeline(3, "head", "blocks.1"),
            "inside.cut = ['head', 'blocks.1']: must be in the order of the network's modules",
        ),
    ],
    ids=str,
)
def test_a_network_without_places_to_cut_is_refused(
    dataset: PreparedDataset, network: type[nn.Module], fields: dict[str, Any], line: str
) -> None:
    """In one line, which names the field and says what is accepted."""
    with pytest.raises(SpecError) as refused:
        check(dataset, network, **fields)
    assert line in str(refused.value)
    assert "\n" not in str(refused.value)


def hybrid(processes: int) -> dict[str, Any]:
    """The fields of a hybrid."""
    return {"inside": {"processes": processes, "how": "hybrid"}}


class Around(nn.Module):
    """Has a way around its dense layer."""

    def __init__(self) -> None:
        super().__init__()
        self.flat, self.dense, self.last = nn.Flatten(), nn.Linear(64, 64), nn.Tanh()

    def forward(self, x: Tensor) -> Tensor:
        flat = self.flat(x)
        shown: Tensor = self.last(self.dense(flat) + flat)
        return shown


@pytest.mark.parametrize(
    ("network", "line"),
    [
        (Around, "lab:Net has no nn.Linear after other layers, whose outputs several"),
        (lambda: nn.Sequential(nn.Conv2d(1, 4, 8), nn.Flatten()), "lab:Net has no nn.Linear after"),
        (Tied, "lab:Net uses a dense layer twice"),
        (Chancy, "lab:Net gives different bytes layer by layer"),
    ],
)
def test_a_network_without_dense_layers_in_a_row_is_no_hybrid(
    dataset: PreparedDataset, network: Callable[[], nn.Module], line: str
) -> None:
    """They are cut into slices of their outputs, so each must be a layer of its own."""
    with pytest.raises(SpecError) as refused:
        check(dataset, network, **hybrid(2))
    assert str(refused.value).startswith(f"inside.how = 'hybrid': {line}")


def test_a_stage_begins_where_the_user_says(dataset: PreparedDataset) -> None:
    """A module may have several layers; the stage begins with the first."""
    spec = Spec.make({**BASE, "model": "lab:Net", **pipeline(3, "blocks", "head")})
    loaded = with_network(spec, dataset, Residual)
    network = loaded.network()
    probe = probed(loaded, network, batch_parts(np.arange(16), 3)[0])
    stages = stages_of(loaded, probe)
    assert stages == [range(2), range(2, 6), range(6, 9)]


@given(
    st.lists(st.integers(0, 9), min_size=2, max_size=8).map(lambda all_: [float(s) for s in all_]),
    st.integers(0, 5),
    st.data(),
)
def test_no_other_cut_is_faster(seconds: list[float], step: int, data: st.DataObject) -> None:
    """The slowest stage, the last one with the optimizer's step, takes no longer than with any."""
    stages = data.draw(st.integers(2, len(seconds)))
    points = tuple(range(1, len(seconds)))
    probe = Probe(layers=[], seconds=tuple(seconds), points=points, step_seconds=float(step))

    def slowest(begin: list[int]) -> float:
        each = [sum(seconds[a:b]) for a, b in pairwise([0, *begin, len(seconds)])]
        return max([*each[:-1], each[-1] + step])

    other = data.draw(st.sets(st.sampled_from(points), min_size=stages - 1, max_size=stages - 1))
    assert slowest(balanced(probe, stages)) <= slowest(sorted(other))


@given(st.permutations([0, 1, 2]), st.lists(st.integers(1, 3), min_size=3, max_size=3), st.data())
def test_a_copy_lies_as_the_tensor_does(
    order: list[int], sizes: list[int], data: st.DataObject
) -> None:
    """Transposed, expanded, with gaps, in the middle of other memory."""
    tensor = torch.arange(5 * 5 * 5, dtype=torch.float32).reshape(5, 5, 5)
    begin = data.draw(st.integers(0, 2))
    tensor = tensor[tuple(slice(begin, begin + size) for size in sizes)].permute(*order)
    if tensor.size(0) == 1 and data.draw(st.booleans()):
        tensor = tensor.expand(4, -1, -1)
    copy = exact_copy(tensor)
    assert torch.equal(copy, tensor)
    assert copy.stride() == tensor.stride()
    assert copy.data_ptr() != tensor.data_ptr()
