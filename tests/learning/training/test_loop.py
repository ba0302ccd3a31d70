"""The local loop: it stops after any step, and another process continues with the same bytes."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from downpour.base.errors import FileCorrupt, NonFinite
from downpour.core.spec import Spec
from downpour.learning.datasets import PreparedDataset
from downpour.learning.models import build
from downpour.learning.tasks import ExampleList
from downpour.learning.tasks.batches import Feed
from downpour.learning.tasks.loaded import LoadedTask, load
from downpour.learning.training.epoch_order import Indices, KeptArrays
from downpour.learning.training.loop import LocalTask, ShardTraining
from downpour.learning.training.optimizers import OPTIMIZERS
from downpour.learning.training.parameters import load_parameters

from .conftest import BASE, same_bytes, started


def finished(training: ShardTraining) -> ShardTraining:
    """Train to the end."""
    training.advance(training.steps_total)
    return training


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("channels_last", [True, False])
@pytest.mark.parametrize("model", ["mnist-cnn", "conv-lstm"])
def test_a_snapshot_after_any_step_continues_with_the_same_bytes(
    dataset: PreparedDataset, model: str, optimizer: str, precision: str, *, channels_last: bool
) -> None:
    """With dropout and flips on, another process ends where an undisturbed one does."""
    fields: dict[str, Any] = {"optimizer": optimizer, "precision": precision, "flip": True}
    fields |= {"channels_last": channels_last, "momentum": 0.9, "weight_decay": 0.01}
    fields |= {"model": model}
    whole = finished(started(dataset, fields))
    for step in range(whole.steps_total + 1):
        first = started(dataset, fields)
        first.advance(step)
        file = safetensors.numpy.save(first.snapshot())
        torch.manual_seed(step)
        second = started(dataset, {**fields, "seed": 0})
        second.restore(safetensors.numpy.load(file))
        assert second.steps_done == step
        finished(second)
        assert same_bytes(second.parameters(), whole.parameters())
        assert same_bytes(second.optimizer_state(), whole.optimizer_state())
        assert (second.mean_loss, second.curve) == (whole.mean_loss, whole.curve)


@settings(deadline=None, max_examples=20)
@given(strides=st.lists(st.integers(0, 3), max_size=8), disturbance=st.integers(0, 9))
def test_how_often_it_pauses_changes_nothing(
    dataset: PreparedDataset, strides: list[int], disturbance: int
) -> None:
    """Pauses in which the process draws random numbers of its own leave the bytes as they are."""
    whole = finished(started(dataset))
    training = started(dataset)
    for stride in strides:
        training.advance(stride)
        torch.rand(disturbance)
    assert same_bytes(finished(training).parameters(), whole.parameters())
    assert training.mean_loss == whole.mean_loss


@pytest.mark.parametrize(("round_", "shard"), [(1, 0), (0, 1)])
def test_rounds_and_shards_differ_in_order_and_dropout(
    dataset: PreparedDataset, round_: int, shard: int
) -> None:
    """The same indices train to other bytes in another round or shard."""
    one, other = started(dataset), started(dataset, round_=round_, shard=shard)
    assert not same_bytes(finished(one).parameters(), finished(other).parameters())


def test_a_model_serves_one_task_after_the_other(dataset: PreparedDataset) -> None:
    """Loading parameters into a used model is as good as building a new one, without gradients."""
    spec = Spec.make({**BASE, "optimizer": "adam"})
    model = build(spec, dataset.facts)
    task = LocalTask(indices=np.arange(90), round=0, shard=0)
    first = ShardTraining(load(spec, dataset), model, task)
    initial = first.parameters()
    trained = finished(first).parameters()
    load_parameters(model, initial)
    second = ShardTraining(load(spec, dataset), model, task)
    assert all(value.grad is None for value in model.parameters())
    assert same_bytes(finished(second).parameters(), trained)


def test_results_are_copies(dataset: PreparedDataset) -> None:
    """What was handed out does not change when training goes on."""
    training = started(dataset, {"optimizer": "adam"})
    training.advance(1)
    taken = training.snapshot()
    kept = {name: array.copy() for name, array in taken.items()}
    finished(training)
    assert same_bytes(taken, kept)


@pytest.mark.parametrize(
    ("count", "local_steps", "steps", "samples"),
    [(90, None, 6, 90), (90, 2, 2, 30), (90, 99, 6, 90), (0, None, 0, 0)],
)
def test_steps_and_samples_respect_the_shard_and_local_steps(
    dataset: PreparedDataset, count: int, local_steps: int | None, steps: int, samples: int
) -> None:
    """A task trains its batches, or `local_steps` of them if these are fewer; perhaps none."""
    training = started(dataset, {"local_steps": local_steps}, count=count)
    before = training.parameters()
    assert training.steps_total == steps
    finished(training)
    training.advance(5)
    assert (training.steps_done, training.samples) == (steps, samples)
    if not steps:
        assert (training.mean_loss, training.curve) == (0.0, ((), ()))
        assert same_bytes(training.parameters(), before)


def test_the_mean_loss_weighs_batches_by_their_size(dataset: PreparedDataset) -> None:
    """With a step too small to matter it is the loss over all examples, in one batch or in many."""
    fields = {"learning_rate": 1e-12, "model": "digits-cnn"}
    many = finished(started(dataset, {**fields, "batch_size": 16}))
    one = finished(started(dataset, {**fields, "batch_size": 90}))
    assert many.mean_loss == pytest.approx(one.mean_loss, rel=1e-5)


@pytest.mark.parametrize("shards", [1, 64, 1000])
def test_a_tasks_curve_has_its_mean_loss(dataset: PreparedDataset, shards: int) -> None:
    """In at most 32 points, and fewer if the shards of a round are many."""
    fields = {"batch_size": 2, "shards": shards, "schedule": "linear", "model": "digits-cnn"}
    training = finished(started(dataset, fields))
    losses, rates = training.curve
    assert len(losses) == len(rates) == {1: 32, 64: 4, 1000: 1}[shards]
    ends = [-(-45 * end // len(losses)) for end in range(len(losses) + 1)]
    assert np.average(losses, weights=np.diff(ends)) == pytest.approx(training.mean_loss, rel=1e-5)
    assert sorted(set(rates), reverse=True) == list(rates)


def test_optimizer_state_carries_over_to_the_next_round(dataset: PreparedDataset) -> None:
    """Adam's averages and step counts go on where the round before ended, in the same memory."""
    fields = {"optimizer": "adam"}
    first = finished(started(dataset, fields))
    state = first.optimizer_state(copy=False)
    second = started(dataset, fields, round_=1, optimizer_state=state)
    average = second.optimizer_state(copy=False)["conv1.weight/exp_avg"]
    assert np.shares_memory(average, state["conv1.weight/exp_avg"])
    assert same_bytes(second.optimizer_state(), first.optimizer_state())
    second.advance(1)
    assert second.optimizer_state()["conv1.weight/step"] == 7


def test_numbers_and_two_classes_with_one_output_train(numbers: PreparedDataset) -> None:
    """Binary cross-entropy on plain numbers: one logit an example."""
    fields = {"model": "mlp", "loss": "binary_cross_entropy", "learning_rate": 0.5}
    training = finished(started(numbers, fields))
    assert training.parameters()["5.weight"].shape == (1, 64)
    assert 0 < training.mean_loss < 0.7


def test_a_loss_that_explodes_is_reported(dataset: PreparedDataset) -> None:
    """NaN ends the task with an error that says by which step, and what to change."""
    with pytest.raises(NonFinite, match=r"by step \d of 6, with learning_rate = 1e\+30"):
        finished(started(dataset, {"learning_rate": 1e30}))


def test_an_accelerator_is_not_waited_for_at_each_step(dataset: PreparedDataset) -> None:
    """Its loss is read at the first step, at some, at the last and before a snapshot is taken."""
    training = started(dataset, {"local_steps": 5})
    training._spec = training._spec.replace(device="cuda")  # all else stays on the processor
    training.advance(1)
    training._loss_sum.fill_(float("nan"))
    for _ in range(3):
        training.advance(1)
    with pytest.raises(NonFinite, match="by step 4 of 5"):
        training.snapshot()
    with pytest.raises(NonFinite, match="by step 5 of 5"):
        training.advance(1)


def test_an_operation_that_cannot_repeat_its_bits_is_told_of_once(
    dataset: PreparedDataset, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Torch has some on accelerators: the step is taken all the same."""
    step = ShardTraining._step

    def failing(training: ShardTraining) -> None:
        if training._loaded.repeats and training.steps_done == 2:
            raise RuntimeError(
                "x_cuda does not have a deterministic implementation, but you set 'torch.use'"
            )
        step(training)

    undisturbed = finished(started(dataset))
    monkeypatch.setattr(ShardTraining, "_step", failing)
    assert same_bytes(finished(started(dataset)).parameters(), undisturbed.parameters())
    told = "mnist-cnn may give different bytes each time: x_cuda does not have a deterministic"
    assert caplog.text.count(told) == 1
    assert "you set" not in caplog.text


def test_parameters_that_explode_in_the_last_step_are_reported(dataset: PreparedDataset) -> None:
    """A finite loss may still leave parameters that are not."""
    training = started(dataset, {"learning_rate": 1e38, "momentum": 0.9, "local_steps": 2})
    with pytest.raises(NonFinite):
        finished(training).parameters()


@pytest.mark.parametrize("indices", [[-1, 3], [0, 100]])
def test_indices_outside_the_training_set_are_refused(
    dataset: PreparedDataset, indices: list[int]
) -> None:
    """A negative index would silently be another example."""
    spec = Spec.make(BASE)
    task = LocalTask(indices=np.array(indices), round=0, shard=0)
    with pytest.raises(FileCorrupt, match="indices"):
        ShardTraining(load(spec, dataset), build(spec, dataset.facts), task)


def test_a_snapshot_of_another_task_is_refused(dataset: PreparedDataset) -> None:
    """Another shard, another network, or something that is no snapshot at all."""
    training = started(dataset)
    for wrong in (started(dataset, shard=1), started(dataset, {"model": "digits-cnn"})):
        with pytest.raises(FileCorrupt):
            training.restore(wrong.snapshot())
    with pytest.raises(FileCorrupt):
        training.restore({})


def test_a_last_batch_of_one_trains_with_batch_norm(dataset: PreparedDataset) -> None:
    """Ninety-seven examples are six batches of sixteen, and the last one has one more."""
    spec = Spec.make(BASE)
    model = nn.Sequential(nn.Flatten(), nn.BatchNorm1d(64), nn.Linear(64, 4), nn.BatchNorm1d(4))
    task = LocalTask(indices=np.arange(97), round=0, shard=0)
    training = finished(ShardTraining(load(spec, dataset), model, task))
    assert (training.steps_done, training.samples) == (6, 97)


class PartlyFrozen(nn.Sequential):
    """Keeps its norm as in evaluation, and turns all of it to evaluation where that is wanted."""

    turns = False

    def train(self, mode: bool = True) -> PartlyFrozen:  # noqa: FBT001, FBT002 - torch's own
        super().train(mode)
        self[1].eval()
        return self

    def forward(self, x: Tensor) -> Tensor:
        """Return four numbers an example, in the mode that `train` leaves."""
        assert [module.training for module in self] == [True, False, True]
        shown: Tensor = self[2](self[1](self[0](x)))
        if self.turns:
            self.eval()
        return shown


@pytest.mark.parametrize("turns", [False, True])
def test_each_step_begins_with_the_mode_that_train_leaves(
    dataset: PreparedDataset, *, turns: bool
) -> None:
    """Also if a step or an evaluation turns the network to evaluation; `train` is its own."""
    model = PartlyFrozen(nn.Flatten(), nn.BatchNorm1d(64), nn.Linear(64, 4))
    model.turns = turns
    task = LocalTask(indices=np.arange(97), round=0, shard=0)
    training = ShardTraining(load(Spec.make(BASE), dataset), model, task)
    training.advance(2)
    model.eval()
    assert finished(training).steps_done == 6


class Masked(nn.Module):
    """Has a causal mask, as attention does, and adds to a part of it where that is wanted."""

    def __init__(self, *, spoils: bool) -> None:
        super().__init__()
        self.linear = nn.Linear(64, 4)
        self.mask: Tensor
        self.register_buffer("mask", torch.full((4, 4), -torch.inf).triu(1))
        self.spoils = spoils

    def forward(self, x: Tensor) -> Tensor:
        """Return a row of four numbers an example."""
        if self.spoils:
            self.mask[0, 0] += 1
        weights = torch.softmax(self.mask, dim=1)
        mixed: Tensor = self.linear(x.flatten(1)) @ weights
        return mixed


def test_an_infinite_constant_may_stay_infinite(dataset: PreparedDataset) -> None:
    """A mask that stays what it is is a constant; one that changes has come out wrong."""
    task = LocalTask(indices=np.arange(32), round=0, shard=0)
    kept = finished(ShardTraining(load(Spec.make(BASE), dataset), Masked(spoils=False), task))
    assert np.isneginf(kept.parameters()["mask"]).sum() == 6
    spoilt = finished(ShardTraining(load(Spec.make(BASE), dataset), Masked(spoils=True), task))
    with pytest.raises(NonFinite, match="mask"):
        spoilt.parameters()


class Drawing(nn.Module):
    """Draws from Python's and numpy's global generators in each step."""

    def __init__(self) -> None:
        super().__init__()
        self.dense = nn.Linear(64, 4)

    def forward(self, x: Tensor) -> Tensor:
        shown: Tensor = self.dense(x.flatten(1) * random.random()) * np.random.random()
        return shown


def test_python_and_numpy_draws_survive_a_hand_over(dataset: PreparedDataset) -> None:
    """A step draws the same in every process, and other numbers than the step before."""
    spec = Spec.make({**BASE, "model": "lab:Drawing"})
    task = LocalTask(indices=np.arange(90), round=0, shard=0)
    state = build(spec.replace(model="mlp", model_options={"hidden": []}), dataset.facts)

    def begun() -> ShardTraining:
        network = Drawing()
        network.dense.load_state_dict(state[1].state_dict())  # type: ignore[index]
        random.seed()
        np.random.seed()
        return ShardTraining(load(spec, dataset), network, task)

    whole = finished(begun())
    for step in range(whole.steps_total):
        first, second = begun(), begun()
        first.advance(step)
        random.random()
        second.restore(first.snapshot())
        assert same_bytes(finished(second).parameters(), whole.parameters())


def test_training_leaves_the_process_as_it_was(dataset: PreparedDataset) -> None:
    """Threads and all generators are its own again, also in the midst of a step's drawing."""
    torch.set_num_threads(2)
    network, before = Drawing(), torch.get_rng_state()
    spec = Spec.make({**BASE, "model": "lab:Drawing"})
    task = LocalTask(indices=np.arange(90), round=0, shard=0)
    random.seed(4)
    np.random.seed(4)
    expected = random.Random(4).random(), np.random.RandomState(4).random_sample()
    finished(ShardTraining(load(spec, dataset), network, task))
    assert (random.random(), np.random.random_sample()) == expected
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.get_num_threads() == 2


def _told(
    monkeypatch: pytest.MonkeyPatch,
    expect: Callable[[Indices, Indices], None],
    reach: Callable[[int], None] = lambda _: None,
) -> None:
    """Let examples be told what will be read.

    They get a class of their own, because `isinstance` remembers which classes fit a protocol.
    """
    told = {"expect": lambda _, *some: expect(*some), "reach": lambda _, place: reach(place)}
    ahead, opened = type("Ahead", (Feed,), told), LoadedTask.examples

    def examples(loaded: LoadedTask, part: str) -> ExampleList:
        found = opened(loaded, part)
        found.__class__ = ahead
        return found

    monkeypatch.setattr(LoadedTask, "examples", examples)


def test_a_resumed_task_fetches_only_what_it_has_left(
    dataset: PreparedDataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And counts what it has read from there on."""
    expected: list[int] = []
    reached: list[int] = []
    _told(monkeypatch, lambda some, _: expected.append(len(some)), reached.append)
    first, second = started(dataset, {}), started(dataset, {})
    first.advance(2)
    second.restore(first.snapshot())
    second.read_ahead()
    finished(second)
    assert expected == [second.samples - first.samples]
    assert (len(reached), reached[0]) == (second.steps_total - 2, 0)


@pytest.mark.parametrize("orders", [None, KeptArrays()], ids=["made", "kept"])
def test_a_task_knows_the_blocks_that_its_shard_needs_later(
    dataset: PreparedDataset, monkeypatch: pytest.MonkeyPatch, orders: KeptArrays | None
) -> None:
    """Those of the epoch's other tasks in the order of these, and then those of the next epoch."""
    kind, ends = type(dataset), np.arange(5, 101, 5)
    asked: list[tuple[list[int], list[int]]] = []

    def expect(*arrays: Indices) -> None:
        now, later = (list(dict.fromkeys((array // 5).tolist())) for array in arrays)
        asked.append((now, later))

    monkeypatch.setattr(kind, "block_ends", ends)
    monkeypatch.setattr(kind, "window_blocks", 2)
    _told(monkeypatch, expect)
    for number in range(6):
        started(dataset, {"meet": 3, "epochs": 2}, round_=number, orders=orders).read_ahead()
    for number in range(3):
        rest = dict.fromkeys(block for now, _ in asked[number + 1 : 3] for block in now)
        later = asked[number][1]
        assert set(rest) <= set(later[: len(rest) + 3])
    first_of_next = asked[3][0]
    assert set(asked[2][1][:4]) == set(first_of_next[:4])
    assert sorted(asked[2][1]) == list(range(18))
