"""Batches from mapped memory, their losses, and what counts as right."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import nn

from downpour.core.spec import Spec
from downpour.learning.datasets import PreparedDataset
from downpour.learning.tasks.batches import Feed, batch_loss, correct


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


def test_cross_entropy_of_no_idea_is_the_logarithm_of_the_classes() -> None:
    """Equal logits for eight classes cost log 8."""
    loss = batch_loss(torch.zeros(3, 8), torch.tensor([0, 5, 7]), CROSS)
    assert loss.item() == pytest.approx(math.log(8))


@pytest.mark.parametrize("shape", [(3,), (3, 1)])
def test_binary_cross_entropy_takes_one_logit_in_either_shape(shape: tuple[int, ...]) -> None:
    """For two classes the output may be [b] or [b, 1]; no idea costs log 2."""
    loss = batch_loss(torch.zeros(shape), torch.tensor([0, 1, 1]), BINARY)
    assert loss.item() == pytest.approx(math.log(2))


def test_correct_outputs_follow_from_the_loss() -> None:
    """The largest logit wins; a binary logit is a yes above 0; targets may be many."""
    logits = torch.tensor([[0.1, 0.9], [2.0, -1.0]])
    assert correct(logits, torch.tensor([1, 1]), CROSS).tolist() == [True, False]
    assert correct(torch.tensor([[3.0], [-3.0]]), torch.tensor([1, 1]), BINARY).tolist() == [
        True,
        False,
    ]
    many = correct(logits, torch.tensor([[1.0, 0.0], [1.0, 0.0]]), BINARY)
    assert many.tolist() == [[True, False], [True, True]]


def test_a_low_precision_output_is_judged_in_float32() -> None:
    """The loss of bfloat16 logits is a float32 number."""
    logits = torch.zeros(2, 10, dtype=torch.bfloat16)
    assert batch_loss(logits, torch.tensor([1, 2]), CROSS).dtype == torch.float32
