"""An epoch in parts: however often the shards meet, each example is trained once in it."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from downpour.base.errors import SpecError
from downpour.core.spec import Spec
from downpour.learning.datasets import PreparedDataset
from downpour.learning.training import loop
from downpour.learning.training.epoch_order import (
    KeptArrays,
    batch_order,
    batches_in,
    check_meetings,
    part_of,
)
from downpour.learning.training.optimizers import Optimizers
from downpour.learning.training.step import TrainingStep, train_step
from tests.learning.training.conftest import started

Steps = list[tuple[list[int], float]]
"""The examples of each step, and the learning rate."""


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> Steps:
    """Note what every step trains, and how fast."""
    seen: Steps = []

    def noted(step: TrainingStep, optimizers: Optimizers, *ways: Any) -> Any:
        [optimizer] = optimizers.by_name.values()
        seen.append((step.indices.tolist(), optimizer.param_groups[0]["lr"]))
        return train_step(step, optimizers, *ways)

    monkeypatch.setattr(loop, "train_step", noted)
    return seen


def train(
    dataset: PreparedDataset, rounds: int, orders: KeptArrays | None = None, **fields: Any
) -> None:
    """Train shard 2 in the first rounds of a training."""
    for number in range(rounds):
        training = started(dataset, fields, round_=number, shard=2, orders=orders)
        training.advance(training.steps_total)
        assert training.steps_done == training.steps_total


@given(
    samples=st.integers(1, 500),
    batch_size=st.integers(1, 40),
    each=st.integers(1, 20),
    epoch=st.integers(0, 5),
)
def test_the_parts_of_an_epoch_are_the_epoch(
    samples: int, batch_size: int, each: int, epoch: int
) -> None:
    """They follow each other, leave nothing out, and differ by a batch at most."""
    spec = Spec.make({"batch_size": batch_size, "meet": each})
    parts = [part_of(spec, samples, epoch * each + meeting) for meeting in range(each)]
    batches = batches_in(samples, batch_size)
    assert [part.first for part in parts] + [batches] == [0, *np.cumsum([p.steps for p in parts])]
    assert [part.before for part in parts] == [part.first for part in parts]
    assert {part.of_epoch for part in parts} == {batches}
    assert sum(part.samples for part in parts) == samples
    assert max(p.steps for p in parts) - min(p.steps for p in parts) <= 1


def test_with_one_meeting_a_round_is_what_it_was(dataset: PreparedDataset, steps: Steps) -> None:
    """The bytes of earlier versions: all of the shard, in the round's order, at the round's rate.

    Written out as it was before there were meetings.
    """
    fields: dict[str, Any] = {"epochs": 3, "schedule": "cosine", "warmup": 0.2, "local_steps": 4}
    fields["last_batch"] = "rest"
    train(dataset, 3, **fields)
    expected: list[Any] = []
    spec = Spec.make({"batch_size": 16, **fields})
    for number in range(3):
        order = batch_order(spec, np.arange(90), None, number, 2)
        for step in range(4):
            share = (number * 4 + step - 2.4) / (12 - 2.4)
            cosine = (1 + np.cos(np.pi * share)) / 2
            factor = (number * 4 + step + 1) / 2.4 if share < 0 else cosine
            rate = 0.01 * min(1.0, factor)
            expected.append((order[16 * step : 16 * step + 16].tolist(), pytest.approx(rate)))
    assert steps == expected


@pytest.mark.parametrize("meet", [2, 3, 6])
def test_meetings_cut_an_epoch_and_change_no_step(
    dataset: PreparedDataset, steps: Steps, meet: int
) -> None:
    """The same batches in the same order at the same rates as with one meeting."""
    fields: dict[str, Any] = {"epochs": 2, "schedule": "linear", "warmup": 0.3}
    train(dataset, 2, **fields)
    whole = steps.copy()
    steps.clear()
    train(dataset, 2 * meet, meet=meet, **fields)
    assert steps == whole


@pytest.mark.parametrize("fields", [{}, {"local_steps": 1}, {"batches": "balanced"}])
def test_the_meetings_of_an_epoch_permute_a_shard_once(
    dataset: PreparedDataset, steps: Steps, monkeypatch: pytest.MonkeyPatch, fields: dict[str, Any]
) -> None:
    """A worker that keeps the order takes the same steps as one that knows nothing of it."""
    train(dataset, 6, meet=3, **fields)
    alone = steps.copy()
    steps.clear()
    epochs: list[int] = []

    def noted(*about: Any) -> Any:
        epochs.append(about[3])
        return batch_order(*about)

    monkeypatch.setattr(loop, "batch_order", noted)
    train(dataset, 6, KeptArrays(), meet=3, **fields)
    assert (steps, epochs) == (alone, [0, 1])


def test_local_steps_limit_each_meeting(dataset: PreparedDataset, steps: Steps) -> None:
    """Of six batches in two meetings, the first two of either; the rate falls over four."""
    train(dataset, 2, epochs=1, meet=2, local_steps=2, schedule="linear")
    order = batch_order(Spec(), np.arange(90), None, 0, 2)
    starts = [15 * batch for batch in (0, 1, 3, 4)]
    assert [batch for batch, _ in steps] == [order[at : at + 15].tolist() for at in starts]
    falls = [one - other for (_, one), (_, other) in pairwise(steps)]
    assert falls == pytest.approx([0.01 / 4] * 3)


def test_a_shard_must_have_a_batch_for_each_meeting() -> None:
    """The smallest one decides; the refusal says how many meetings it allows."""
    spec = Spec.make({"batch_size": 32, "meet": 4})
    check_meetings(spec, [500, 100])
    with pytest.raises(SpecError) as refused:
        check_meetings(spec, [500, 96])
    assert str(refused.value) == (
        "meet = 4: must be at most 3: the smallest shard has 96 examples, or 3 batches of 32"
    )
