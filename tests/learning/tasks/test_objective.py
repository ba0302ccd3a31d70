"""Losses and what counts as right."""

from __future__ import annotations

import math

import pytest
import torch

from downpour.core.spec import Spec
from downpour.learning.tasks.batches import batch_loss, correct

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
