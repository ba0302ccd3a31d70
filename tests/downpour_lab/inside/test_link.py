"""Tensors that go from one process to another, through two ends in this one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from downpour.learning.intra_worker.helper_process import ProcessGone
from downpour_lab.inside.links import Link, generators_state, go_on, linked


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
