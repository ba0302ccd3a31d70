"""Stages in a pipeline, and layers that are divided by kind: the bytes of one process."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from downpour.core.spec import Spec
from downpour.learning import numerics
from downpour.learning.datasets import PreparedDataset
from downpour.learning.intra_worker.helper_process import ProcessGone
from downpour.learning.tasks.loaded import LoadedTask, load
from downpour.learning.training.step import batch_parts
from downpour_lab.inside.hybrid import HybridStep, Share
from downpour_lab.inside.links import Link, generators_state, go_on, linked
from downpour_lab.inside.pipeline import Turn, turns
from tests.learning.training.conftest import BASE, started


@pytest.fixture
def ends() -> Iterator[tuple[Link, Link]]:
    """Both ends of a link."""
    one, other = map(Link, linked())
    yield one, other
    one.close()
    other.close()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_a_tensor_arrives_as_it_lay(ends: tuple[Link, Link], dtype: torch.dtype) -> None:
    """With its strides and its type, and in both directions."""
    one, other = ends
    images = torch.randn(2, 3, 5, 5).to(dtype).contiguous(memory_format=torch.channels_last)
    one.send(0, images.requires_grad_())
    there = other.receive()
    assert torch.equal(there.tensor, images)
    assert there.tensor.stride() == images.stride()
    assert there.trained
    other.send(0, torch.ones(1, dtype=dtype).expand(4))
    back = one.receive()
    assert back.tensor.stride() == (0,)
    assert not back.trained


def test_an_empty_tensor_arrives(ends: tuple[Link, Link]) -> None:
    """A slice of a dense layer is empty where there are more processes than outputs."""
    one, other = ends
    one.send(0, torch.ones(3, 0))
    assert other.receive().tensor.shape == (3, 0)


def test_each_slot_keeps_its_tensor(ends: tuple[Link, Link]) -> None:
    """Also where the memory grows meanwhile; a slot that is used again holds the new one."""
    one, other = ends
    sent = [torch.full((1 << n,), float(n)) for n in range(0, 18, 3)]
    for slot, tensor in enumerate(sent):
        one.send(slot, tensor)
    there = [other.receive().tensor for _ in sent]
    assert all(map(torch.equal, there, sent))
    one.send(0, torch.full((3,), 7.0))
    assert torch.equal(other.receive().tensor, torch.full((3,), 7.0))
    assert all(map(torch.equal, there[1:], sent[1:]))


def test_a_received_tensor_can_change_in_place(ends: tuple[Link, Link]) -> None:
    """And the sender's tensor stays as it is."""
    one, other = ends
    sent = torch.ones(3)
    one.send(0, sent)
    other.receive().tensor.mul_(2)
    assert torch.equal(sent, torch.ones(3))


def test_generators_go_on_where_they_were(ends: tuple[Link, Link]) -> None:
    """What the receiver draws is what the sender would have drawn next."""
    one, other = ends
    torch.manual_seed(3)
    torch.rand(5)
    one.send(0, torch.ones(1), generators_state(beyond_torch=True))
    wanted = torch.rand(2)
    torch.manual_seed(4)
    go_on(other.receive().generators)
    assert torch.equal(torch.rand(2), wanted)


def test_an_end_that_is_gone_is_told(ends: tuple[Link, Link]) -> None:
    """To the one that waits, to the one that sends; and silence is not waited for for ever."""
    one, other = ends
    with pytest.raises(ProcessGone, match="does not answer"):
        one.receive(0.01)
    other.close()
    with pytest.raises(ProcessGone, match="has ended"):
        one.receive()
    with pytest.raises(ProcessGone, match="has ended"):
        one.send(0, torch.ones(1))


@given(st.integers(0, 9), st.integers(1, 20))
def test_each_part_passes_once_and_comes_back_in_order(ahead: int, parts: int) -> None:
    """Forward before backward, and never more parts under way than are needed."""
    taken = list(turns(ahead, parts))
    for kind in Turn:
        assert [number for turn, number in taken if turn is kind] == list(range(parts))
    under_way = 0
    for turn, _ in taken:
        under_way += 1 if turn is Turn.FORWARD else -1
        assert 0 <= under_way <= ahead + 1


@given(st.integers(2, 6), st.integers(1, 9))
def test_no_stage_waits_for_ever(stages: int, parts: int) -> None:
    """Each waits for the one before and for the one after; all come to their end."""
    ahead = [list(turns(stages - 1 - number, parts)) for number in range(stages)]
    done: set[tuple[int, Turn, int]] = set()
    while any(ahead):
        ready = [
            (stage, *turns_[0])
            for stage, turns_ in enumerate(ahead)
            if turns_ and _needed(stage, *turns_[0], stages) <= done
        ]
        assert ready
        for stage, turn, number in ready:
            done.add((stage, turn, number))
            del ahead[stage][0]


def _needed(stage: int, turn: Turn, number: int, stages: int) -> set[tuple[int, Turn, int]]:
    neighbour = stage - 1 if turn is Turn.FORWARD else stage + 1
    return {(neighbour, turn, number)} if 0 <= neighbour < stages else set()


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
