"""Batches of any shape, of rows and from mapped memory; "meta" stands for an accelerator."""

from __future__ import annotations

import math
import warnings
from collections import UserDict
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_sequence
from torch.utils.data import Subset, TensorDataset, default_collate

from downpour.base.values import DatasetFacts
from downpour.core.spec import Spec
from downpour.learning.blame import describe_error
from downpour.learning.datasets import PreparedDataset
from downpour.learning.tasks import ExampleList, Task, batches
from downpour.learning.tasks.agreement import TaskData
from downpour.learning.tasks.batches import (
    Columns,
    Feed,
    batch_loss,
    batch_of,
    on_device,
    read,
)
from downpour.learning.tasks.loaded import LoadedTask


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


CHOSEN = [4, 0, 4, 2]
X, Y = torch.arange(12.0).reshape(6, 2), torch.arange(6)


class Reading(Task):
    """A task of which only the reading counts."""

    def __init__(self, examples: ExampleList) -> None:
        self._examples = examples

    def examples(self, part: str) -> ExampleList:
        del part
        return self._examples


class Collating(Reading):
    """It makes its batches itself."""

    def collate(self, examples: list[tuple[Tensor, Tensor]]) -> str:
        return f"{len(examples)} of mine"


def loaded(task: Task) -> LoadedTask:
    """Return the task over six examples."""
    count = len(task.examples("train"))
    facts = DatasetFacts(
        train_samples=count, test_samples=count, sample_shape=(), classes=0, targets_per_sample=0
    )
    data = TaskData(facts=facts, labels=None, sketches={"train": {}, "test": {}})
    return LoadedTask(Spec.make({"task": "any:Task", "device": "cpu"}), task, data)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.complex64, torch.bool])
def test_a_batch_is_what_torch_collates(dtype: torch.dtype) -> None:
    """Values, types, shapes and strides, also of a column that has gaps, and of plain numbers."""
    examples = TensorDataset(X.to(dtype), X.T.repeat(3, 1).T.to(dtype), Y)
    batch = loaded(Reading(examples)).batch("train", np.array(CHOSEN))
    expected = default_collate([examples[index] for index in CHOSEN])
    assert type(batch) is type(expected)
    for one, other in zip(batch, expected, strict=True):
        assert (one.dtype, one.shape, one.stride()) == (other.dtype, other.shape, other.stride())
        assert torch.equal(one, other)


def test_a_task_that_collates_is_asked() -> None:
    """Its batches are its own."""
    assert loaded(Collating(TensorDataset(X, Y))).batch("train", np.array(CHOSEN)) == "4 of mine"


class Loud(TensorDataset):
    """A dataset that changes what a row is."""

    def __getitem__(self, index: int) -> tuple[Tensor, ...]:
        return tuple(column[index] + 100 for column in self.tensors)


def test_other_examples_are_read_one_by_one() -> None:
    """A dataset may do more than to index its tensors, and some tensors have no plain memory."""
    with warnings.catch_warnings(action="ignore"):
        sparse = X.to_sparse_csr()
    others: list[ExampleList] = [
        [(X[0], Y[0])],
        Subset(TensorDataset(X, Y), [1, 2]),
        Loud(X, Y),
        TensorDataset(X, sparse),
        TensorDataset(nn.Parameter(X)),
        TensorDataset(X.clone().requires_grad_()),
        TensorDataset(X.to("meta")),
    ]
    assert [Columns.of(other) for other in others] == [None] * len(others)


@pytest.mark.parametrize(("free_bytes", "stays"), [(8 * X.nbytes, True), (8 * X.nbytes - 1, False)])
def test_examples_stay_on_a_device_that_they_do_not_fill(
    monkeypatch: pytest.MonkeyPatch, free_bytes: int, *, stays: bool
) -> None:
    """They move there once; more than an eighth of its free memory stays on the host."""
    moves: list[tuple[int, ...]] = []

    def moved(value: Tensor, device: str) -> Tensor:
        moves.append(tuple(value.shape))
        return value.to(device)

    monkeypatch.setattr(batches, "free_bytes", lambda _: free_bytes)
    monkeypatch.setattr(batches, "moved", moved)
    rows = Columns([X])
    for _ in range(2):
        (batch,) = rows.gathered(CHOSEN, "meta")
        assert (batch.device.type, batch.shape) == ("meta", (4, 2))
    assert moves == [(4,) if stays else (4, 2)] * 2
    (here,) = rows.gathered(CHOSEN, "cpu")
    assert torch.equal(here, X[CHOSEN])


@pytest.mark.parametrize("channels_last", [True, False])
def test_images_are_normalized_and_channels_come_first(
    dataset: PreparedDataset, *, channels_last: bool
) -> None:
    """A batch is what the plain formula gives for the chosen examples."""
    feed = Feed(
        dataset, dataset.train, Spec.make({"channels_last": channels_last, "device": "cpu"})
    )
    chosen = [7, 3, 99]
    x, y = feed.__getitems__(chosen)
    expected = (dataset.train.x[chosen] - dataset.mean) / dataset.std
    assert x.shape == (3, 1, 8, 8)
    assert np.allclose(x.permute(0, 2, 3, 1).numpy(), expected, atol=1e-6)
    assert y.tolist() == dataset.train.y[chosen].tolist()


def test_numbers_are_standardized(numbers: PreparedDataset) -> None:
    """Over the whole training set each feature has mean 0 and deviation 1."""
    x, _ = Feed(numbers, numbers.train, Spec.make({"device": "cpu"})).__getitems__(range(100))
    assert torch.allclose(x.mean(dim=0), torch.zeros(5), atol=1e-5)
    assert torch.allclose(x.std(dim=0, correction=0), torch.ones(5), atol=1e-5)


def test_the_mapped_memory_is_never_changed(numbers: PreparedDataset) -> None:
    """Normalizing works on copies: the second reading is the first."""
    before = numbers.train.x.copy()
    Feed(numbers, numbers.train, Spec.make({"device": "cpu"})).__getitems__(range(100))
    assert np.array_equal(numbers.train.x, before)


def test_flips_mirror_some_images(dataset: PreparedDataset) -> None:
    """An image is itself or its mirror image, by torch's generator."""
    plain = Feed(dataset, dataset.train, Spec.make({"device": "cpu"}))
    flipping = Feed(dataset, dataset.train, Spec.make({"device": "cpu"}), flip=True)
    everything = range(100)
    torch.manual_seed(1)
    x, original = flipping.__getitems__(everything)[0], plain.__getitems__(everything)[0]
    same = (x == original).flatten(1).all(dim=1)
    mirrored = (x == original.flip(3)).flatten(1).all(dim=1)
    assert bool((same | mirrored).all())
    assert 20 < int(mirrored.sum()) < 80


@pytest.mark.parametrize(
    ("fields", "channels_last"),
    [
        ({}, True),
        ({"model": "resnet18"}, True),
        ({"model": "my.nets:Net"}, False),
        ({"model": "my.nets:Net", "channels_last": True}, True),
        ({"channels_last": False}, False),
    ],
)
def test_the_plain_layout_is_plain_for_gray_images_too(
    dataset: PreparedDataset, fields: dict[str, object], *, channels_last: bool
) -> None:
    """Code of the user's gets it by default, so that `x.view` works on what convolutions return."""
    x, _ = Feed(dataset, dataset.train, Spec.make({"device": "cpu", **fields})).__getitems__(
        range(3)
    )
    assert x.stride() == ((64, 1, 8, 1) if channels_last else (64, 64, 8, 1))
    layout = torch.channels_last if channels_last else torch.contiguous_format
    assert nn.Conv2d(1, 4, 3)(x).is_contiguous(memory_format=layout)


CROSS = Spec.make({"loss": "cross_entropy"})

BINARY = Spec.make({"loss": "binary_cross_entropy"})


@pytest.mark.parametrize("shape", [(3,), (3, 1)])
def test_binary_cross_entropy_takes_one_logit_in_either_shape(shape: tuple[int, ...]) -> None:
    """For two classes the output may be [b] or [b, 1]; no idea costs log 2."""
    loss = batch_loss(torch.zeros(shape), torch.tensor([0, 1, 1]), BINARY)
    assert loss.item() == pytest.approx(math.log(2))


def test_a_low_precision_output_is_judged_in_float32() -> None:
    """The loss of bfloat16 logits is a float32 number."""
    logits = torch.zeros(2, 10, dtype=torch.bfloat16)
    assert batch_loss(logits, torch.tensor([1, 2]), CROSS).dtype == torch.float32
