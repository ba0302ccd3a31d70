"""Batches of any shape come onto the device whole; "meta" stands for one that is not here."""

from __future__ import annotations

from collections import UserDict
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.utils.rnn import pack_sequence

from downpour.learning.blame import describe_error
from downpour.learning.tasks import Task
from downpour.learning.tasks.batches import batch_of, on_device, read


class Pair(NamedTuple):
    """Two tensors by name."""

    x: Tensor
    y: Tensor


class Encoding(UserDict[str, Tensor]):
    """What a tokenizer returns: no dictionary, but it moves itself."""

    def to(self, device: str) -> Encoding:
        return Encoding({name: value.to(device) for name, value in self.data.items()})


@pytest.fixture(autouse=True)
def without_pinning(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pinned memory is an accelerator's, and there is none."""
    monkeypatch.setattr(Tensor, "pin_memory", lambda tensor: tensor)


def tensors_in(batch: Any) -> list[Tensor]:
    """Return all tensors of a batch."""
    if isinstance(batch, Tensor):
        return [batch]
    if isinstance(batch, dict | UserDict):
        return [one for value in batch.values() for one in tensors_in(value)]
    if isinstance(batch, tuple | list):
        return [one for value in batch for one in tensors_in(value)]
    return []


@pytest.mark.parametrize(
    "batch",
    [
        torch.zeros(3),
        (torch.zeros(3), [torch.zeros(2), "a word", 7]),
        {"image": torch.zeros(2, 3), "boxes": [{"at": torch.zeros(4)}, {"at": torch.zeros(4)}]},
        Pair(torch.zeros(3), torch.zeros(0)),
        Encoding(ids=torch.zeros(3), mask=torch.zeros(3)),
        (Encoding(ids=torch.zeros(3)), torch.zeros(3)),
        torch.zeros(3, device="meta"),
    ],
    ids=["tensor", "mixed", "detection", "named", "encoding", "nested", "there"],
)
def test_every_tensor_of_a_batch_is_moved_and_nothing_else(batch: Any) -> None:
    """Its shape stays: dictionaries, lists, named tuples, and what has a `to` of its own."""
    moved = on_device(batch, "meta")
    assert type(moved) is type(batch)
    assert tensors_in(moved)
    assert all(value.device.type == "meta" for value in tensors_in(moved))
    if isinstance(batch, tuple) and isinstance(batch[1], list):
        assert moved[1][1:] == ["a word", 7]


def test_a_packed_sequence_keeps_its_sizes_on_the_processor() -> None:
    """Where torch's recurrent networks want them; in a tuple, too."""
    packed, label = on_device((pack_sequence([torch.zeros(3)]), torch.zeros(1)), "meta")
    assert (packed.data.device.type, label.device.type) == ("meta", "meta")
    assert packed.batch_sizes.device.type == "cpu"


def test_a_batch_is_collated_before_it_is_moved() -> None:
    """So `collate` sees the examples as they were read."""

    class Looking(Task):
        def collate(self, examples: list[Any]) -> Any:
            assert all(one.device.type == "cpu" for one in examples)
            return super().collate(examples)

    examples = [torch.full((2,), float(n)) for n in range(5)]
    batch = batch_of(Looking(), examples, "train", np.array([3, 1]), "meta")
    assert (batch.shape, batch.device.type) == ((2, 2), "meta")


class Damaged:
    """Examples of which some cannot be read."""

    def __init__(self, *damaged: int) -> None:
        self.damaged = damaged

    def __len__(self) -> int:
        return 20

    def __getitem__(self, index: int) -> int:
        if index in self.damaged:
            raise OSError("image file is truncated")
        return index


class Together(Damaged):
    """They are read many at once; where `limit` is given, fewer than that."""

    limit = 20

    def __getitems__(self, indices: list[int]) -> list[int]:
        if len(indices) > self.limit:
            raise ValueError("too many")
        return [self[index] for index in indices]


class Few(Together):
    """No example is damaged, but not all can be read at once."""

    limit = 2


@pytest.mark.parametrize(
    ("examples", "line"),
    [
        (Damaged(17, 18), 'OSError: image file is truncated; example 17 of "train"'),
        (Together(17), 'OSError: image file is truncated; example 17 of "train"'),
        (Few(), 'ValueError: too many; one of examples 3 to 17 of "train"'),
    ],
)
def test_an_example_that_cannot_be_read_is_named(examples: Damaged, line: str) -> None:
    """Also one of many that are read at once, if it cannot be read alone."""
    with pytest.raises((OSError, ValueError)) as raised:
        read(examples, "train", [3, 5, 17])
    assert describe_error(raised.value).startswith(line)
