"""Accumulating and clipping gradients."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from downpour.learning.datasets import PreparedDataset
from downpour.learning.training.loop import ShardTraining

from .conftest import started


def after(dataset: PreparedDataset, steps: int, **fields: Any) -> ShardTraining:
    """Return a training after some steps, of a network without dropout."""
    training = started(dataset, {"model": "mlp", "momentum": 0.0, **fields})
    training.advance(steps)
    return training


@pytest.mark.parametrize("parts", [2, 3, 16, 50])
def test_a_batch_in_parts_is_the_same_step(dataset: PreparedDataset, parts: int) -> None:
    """The mean gradient and the mean loss are those of the whole batch, but for rounding."""
    whole, cut = after(dataset, 3), after(dataset, 3, accumulate=parts)
    assert cut.mean_loss == pytest.approx(whole.mean_loss, rel=1e-5)
    for name, array in whole.parameters().items():
        assert np.allclose(array, cut.parameters()[name], atol=1e-6)


def test_a_clipped_step_is_no_longer_than_the_limit(dataset: PreparedDataset) -> None:
    """Plain gradient descent moves by the learning rate times the gradient's norm at most."""
    before = after(dataset, 0).parameters()
    clipped = after(dataset, 1, clip_norm=0.01, learning_rate=0.5).parameters()
    moved = [np.square(clipped[name] - array).sum() for name, array in before.items()]
    assert np.sqrt(sum(moved)) == pytest.approx(0.5 * 0.01, rel=1e-3)
