"""Examples that are rows of tensors are gathered at once; "meta" stands for an accelerator."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import Subset, TensorDataset, default_collate

from downpour.base.values import DatasetFacts
from downpour.core.spec import Spec
from downpour.learning.tasks import ExampleList, Task, batches
from downpour.learning.tasks.agreement import TaskData
from downpour.learning.tasks.batches import Columns
from downpour.learning.tasks.loaded import LoadedTask

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
