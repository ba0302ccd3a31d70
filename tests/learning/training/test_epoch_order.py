"""The order inside a shard, and an epoch in parts."""

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from downpour.base.errors import SpecError
from downpour.core.spec import Spec, batches_in
from downpour.learning.datasets import PreparedDataset
from downpour.learning.training.epoch_order import (
    KeptArrays,
    batch_order,
    blocks_in_order,
    check_meetings,
    part_of,
    samples_in,
)
from downpour.learning.training.optimizers import Optimizers
from downpour.learning.training.step import TrainingStep, train_step
from tests.learning.training.conftest import started

shards = st.lists(st.integers(0, 6), max_size=150)


def spec_of(batches: str, batch_size: int = 8, seed: int = 0) -> Spec:
    """Return a spec with one way of making batches."""
    return Spec.make({"batches": batches, "batch_size": batch_size, "seed": seed})


@pytest.mark.parametrize("batches", ["shuffled", "balanced"])
@given(shard=shards, epoch=st.integers(0, 1000))
def test_every_index_appears_exactly_once(batches: str, shard: list[int], epoch: int) -> None:
    """Nothing is dropped and nothing repeated."""
    labels = np.asarray([0, *shard], dtype=np.int64)
    indices = np.arange(1, len(labels))
    order = batch_order(spec_of(batches), indices, labels, epoch, 3)
    assert np.array_equal(np.sort(order), indices)


@given(shard=shards, batch_size=st.integers(7, 40), seed=st.integers(0, 2**63 - 1))
def test_a_balanced_batch_holds_each_class_by_its_share_of_what_is_left(
    shard: list[int], batch_size: int, seed: int
) -> None:
    """No class differs by a whole example from s * r_c / R; see the module's rule."""
    labels = np.asarray(shard, dtype=np.int64)
    spec = spec_of("balanced", batch_size, seed)
    order = labels[batch_order(spec, np.arange(len(labels)), labels, 0, 0)]
    batches = range(batches_in(len(order), batch_size) + 1)
    for start, stop in pairwise(samples_in(count, len(order), spec) for count in batches):
        left, batch = order[start:], order[start:stop]
        shares = len(batch) * np.bincount(left, minlength=7) / len(left)
        assert np.all(np.abs(np.bincount(batch, minlength=7) - shares) < 1)


@pytest.mark.parametrize("batches", ["shuffled", "balanced"])
def test_the_order_follows_from_seed_epoch_and_shard(batches: str) -> None:
    """Equal ones give equal orders; a change in any gives another."""
    labels = np.arange(100) % 4
    made = [
        tuple(batch_order(spec_of(batches, seed=seed), np.arange(100), labels, epoch, shard))
        for seed, epoch, shard in [(0, 0, 0), (0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1)]
    ]
    assert made[0] == made[1]
    assert len(set(made)) == 4


def test_the_arrays_needed_last_are_kept_as_far_as_they_fit() -> None:
    """One that is too large for the limit is kept alone."""
    kept, made = KeptArrays(limit_bytes=24), ""

    def need(key: str, count: int) -> None:
        def make() -> NDArray[np.int64]:
            nonlocal made
            made += key
            return np.arange(count)

        assert len(kept.get(key, count, make)) == count

    for key in "abcadacbLLb":
        need(key, 9 if key == "L" else 1)
    assert made == "abcdbLb"


def test_balance_needs_classes_and_room_for_them() -> None:
    """Multi-hot targets have no classes; five classes need batches of five."""
    with pytest.raises(SpecError, match="needs labels"):
        batch_order(spec_of("balanced"), np.arange(3), None, 0, 0)
    with pytest.raises(SpecError, match="at least 5, the number of classes"):
        batch_order(spec_of("balanced", 4), np.arange(5), np.arange(5), 0, 0)


@pytest.mark.parametrize(
    ("samples", "batches", "held"),
    [
        (0, 0, [0]),
        (1, 1, [0, 1]),
        (8, 1, [0, 8]),
        (9, 1, [0, 9]),
        (10, 2, [0, 8, 10]),
        (16, 2, [0, 8, 16]),
        (17, 2, [0, 8, 17]),
    ],
)
def test_a_single_example_that_is_left_over_joins_the_batch_before_it(
    samples: int, batches: int, held: list[int]
) -> None:
    """Batches of eight; what is left over beyond one example is a batch of its own, as ever."""
    spec = spec_of("shuffled").replace(last_batch="rest")
    assert batches_in(samples, 8) == batches
    assert [samples_in(count, samples, spec) for count in range(batches + 1)] == held


@pytest.mark.parametrize(("samples", "sizes"), [(17, [8, 8]), (23, [8, 8]), (16, [8, 8]), (5, [5])])
def test_examples_that_fill_no_batch_are_left_out_in_the_given_order(
    samples: int, sizes: list[int]
) -> None:
    """As a DataLoader with drop_last and without shuffle; but a shard has a batch at least."""
    spec = spec_of("shuffled").replace(last_batch="drop", order="given")
    part = part_of(spec, samples, 0)
    bounds = [samples_in(number, samples, spec) for number in range(part.steps + 1)]
    assert (np.diff(bounds).tolist(), part.samples) == (sizes, sum(sizes))
    assert batch_order(spec, np.arange(samples)[::-1], None, 3, 1).tolist() == [*range(samples)]


def test_batches_of_one_stay_batches_of_one() -> None:
    """Where they are asked for there is nothing to join."""
    assert (batches_in(3, 1), samples_in(2, 3, spec_of("shuffled", 1))) == (3, 2)


@given(samples=st.integers(1, 1000), batch_size=st.integers(1, 100))
def test_even_batches_are_as_many_and_nearly_equal(samples: int, batch_size: int) -> None:
    """They hold all examples, differ by one, and none has more than one beyond `batch_size`."""
    spec, count = spec_of("shuffled", batch_size), batches_in(samples, batch_size)
    sizes = np.diff([samples_in(number, samples, spec) for number in range(count + 1)])
    assert sizes.sum() == samples
    assert sizes.max() - sizes.min() <= 1
    assert 1 <= sizes.min() <= sizes.max() <= batch_size + 1


@given(
    counts=st.lists(st.integers(1, 9), min_size=1, max_size=40),
    share=st.integers(1, 3),
    epoch=st.integers(0, 9),
    first=st.integers(0, 400),
)
def test_an_epoch_has_a_window_of_blocks_open(
    counts: list[int], share: int, epoch: int, first: int
) -> None:
    """At most eight at a time, each once; so it is with the first examples alone."""
    ends = np.cumsum(counts)
    indices = np.arange(0, ends[-1], share)
    about = spec_of("shuffled"), indices, None, epoch, 0
    order = batch_order(*about, None, ends, 8)
    assert np.array_equal(np.sort(order), indices)
    if len({*np.searchsorted(ends, order, side="right").tolist()}) > 8:
        again = batch_order(about[0], np.roll(indices, 7), *about[2:], None, ends, 8)
        assert np.array_equal(again, order)
    assert np.array_equal(batch_order(*about, first, ends, 8)[:first], order[:first])
    blocks = np.searchsorted(ends, order, side="right").tolist()
    spans = [(blocks.index(block), len(blocks) - blocks[::-1].index(block)) for block in {*blocks}]
    for place in range(len(blocks)):
        assert sum(begin <= place < end for begin, end in spans) <= 8
    needed = blocks_in_order(indices, ends, 8, 0, 0, epoch, 0)
    assert sorted(np.searchsorted(ends, needed, side="right").tolist()) == sorted({*blocks})


def test_an_epoch_begins_with_few_blocks() -> None:
    """Blocks come in one by one, so the first step waits for few; later each batch mixes many."""
    ends = np.arange(100, 10_100, 100)
    order = batch_order(spec_of("shuffled"), np.arange(10_000), None, 0, 0, None, ends, 16)
    blocks = order // 100
    assert len({*blocks[:8].tolist()}) <= 3
    assert all(len({*blocks[at : at + 64].tolist()}) >= 12 for at in range(2000, 8000, 64))
    came = list(dict.fromkeys(blocks.tolist()))
    needed = blocks_in_order(np.arange(10_000), ends, 16, 5000, 0, 0, 0) // 100
    assert {*blocks[5000:].tolist()} - {*needed.tolist()} <= {*came[: 50 - 8]}
    assert {*needed.tolist()} <= {*came[50 - 8 :]}


def test_blocks_come_in_another_order_in_each_epoch() -> None:
    """And so do the examples of a window, which are not sorted."""
    ends = np.arange(10, 1000, 10)
    first, second = (
        batch_order(spec_of("shuffled"), np.arange(990), None, epoch, 0, None, ends, 8)
        for epoch in (0, 1)
    )
    assert set((first[:80] // 10).tolist()) != set((second[:80] // 10).tolist())
    assert len(set((first[:8] // 10).tolist())) > 1


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

    monkeypatch.setattr("downpour.learning.training.step.train_step", noted)
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
    """The bytes of earlier versions, written out: all of the shard, in its order, at its rate."""
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

    monkeypatch.setattr("downpour.learning.training.epoch_order.batch_order", noted)
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
