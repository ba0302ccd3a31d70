"""The learning rate follows from the position."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from downpour.base.values import DatasetFacts
from downpour.core.spec import Spec
from downpour.learning.tasks.agreement import TaskData
from downpour.learning.tasks.loaded import LoadedTask
from downpour.learning.tasks.task import Task
from downpour.learning.training.optimizers import Position, rate_factor

DATA = TaskData(
    facts=DatasetFacts(train_samples=1, test_samples=1, sample_shape=(), classes=0),
    labels=None,
    sketches={},
)


def factors(rounds: int = 2, steps: int = 5, **fields: Any) -> list[float]:
    """Return the factors of all steps of a training."""
    task = LoadedTask(Spec.make({"epochs": rounds, **fields}), Task(), DATA)
    return [
        rate_factor(task, Position(epoch=one, epochs=rounds, step=step, steps=steps))
        for one in range(rounds)
        for step in range(steps)
    ]


def test_by_default_it_stays() -> None:
    """One for every step."""
    assert factors() == [1.0] * 10


def test_a_cosine_is_torch_s() -> None:
    """As CosineAnnealingLR with as many steps as the training has, down to a tenth."""
    import torch

    weight = torch.zeros(1, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=1.0)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10, eta_min=0.1)
    expected = []
    for _ in range(10):
        expected.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    assert factors(schedule="cosine", final_rate=0.1) == pytest.approx(expected)


def test_a_rate_times_the_shards_is_warmed_up_to() -> None:
    """From the rate of one shard to that of four, over five of ninety epochs or as asked."""
    scaled = factors(rounds=90, steps=2, scale_rate=True, shards=4)
    assert scaled[:11] == pytest.approx([*(1 + 3 * step / 10 for step in range(10)), 4.0])
    assert set(scaled[10:]) == {4.0}
    assert factors(scale_rate=True, shards=3, warmup=0.4, schedule="linear") == pytest.approx(
        [1.0, 1.5, 2.0, 2.5, *(3 * left / 6 for left in (6, 5, 4, 3, 2, 1))]
    )


def test_warming_up_comes_first() -> None:
    """Four of ten steps rise to the whole rate, and the schedule takes the others."""
    assert factors(warmup=0.4, schedule="linear") == pytest.approx(
        [0.25, 0.5, 0.75, 1.0, 1.0, 5 / 6, 4 / 6, 3 / 6, 2 / 6, 1 / 6]
    )


def test_steps_fall_by_rounds() -> None:
    """As StepLR, once a number of epochs."""
    found = factors(rounds=5, steps=1, schedule="step", decay=0.5, decay_every=2)
    assert found == [1.0, 1.0, 0.5, 0.5, 0.25]


@given(
    schedule=st.sampled_from(["constant", "cosine", "linear", "step"]),
    warmup=st.floats(0, 0.99),
    rounds=st.integers(1, 4),
    steps=st.integers(1, 7),
    least=st.floats(0, 1),
)
def test_a_factor_is_a_share(
    schedule: str, warmup: float, rounds: int, steps: int, least: float
) -> None:
    """Of the learning rate: above 0 but for the end of a fall, and at most 1."""
    fields = {"schedule": schedule, "warmup": warmup, "final_rate": least}
    found = factors(rounds, steps, **fields)
    assert all(0 <= one <= 1 and math.isfinite(one) for one in found)
    assert found[0] > 0
