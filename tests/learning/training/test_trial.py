"""A network that cannot train, or not repeatably, is refused before a worker gets a shard."""

import random
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from downpour.base.errors import SpecError
from downpour.core.spec import Spec
from downpour.learning.datasets import PreparedDataset
from downpour.learning.tasks.batches import Classification
from downpour.learning.tasks.loaded import LoadedTask, load
from downpour.learning.training.trial import check_trains

from .conftest import BASE, with_network

SHARDS = [np.arange(50), np.arange(50, 87)]


class Plain(nn.Module):
    """A small network, for others to spoil."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden, self.dense = nn.Linear(64, 8), nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        shown: Tensor = self.dense(self.noisy(torch.relu(self.hidden(x.flatten(1)))))
        return shown

    def noisy(self, hidden: Tensor) -> Tensor:
        return hidden


class Dropping(Plain):
    """Draws from torch."""

    def noisy(self, hidden: Tensor) -> Tensor:
        return nn.functional.dropout(hidden, 0.5)


class Drawing(Plain):
    """Draws from Python's and numpy's global generators."""

    def noisy(self, hidden: Tensor) -> Tensor:
        return hidden * random.random() * np.random.random()


class Restless(Plain):
    """Draws from a generator of its own, which is never seeded."""

    def __init__(self) -> None:
        super().__init__()
        self.generator = np.random.default_rng()

    def noisy(self, hidden: Tensor) -> Tensor:
        return hidden * self.generator.random()


class Timed(Plain):
    """Depends on the clock from the beginning."""

    def __init__(self) -> None:
        super().__init__()
        with torch.no_grad():
            # Without whole seconds: beside those of a day, float32 has no milliseconds.
            self.dense.bias.fill_(time.perf_counter() % 1)


class Counting(Plain):
    """Counts its calls in an attribute, and makes use of that."""

    calls = 0

    def noisy(self, hidden: Tensor) -> Tensor:
        self.calls += 1
        return hidden / self.calls


class Hiding(Plain):
    """Keeps a running mean where no file has it."""

    def __init__(self) -> None:
        super().__init__()
        self.mean: Tensor
        self.register_buffer("mean", torch.zeros(8), persistent=False)

    def noisy(self, hidden: Tensor) -> Tensor:
        self.mean = 0.9 * self.mean + 0.1 * hidden.detach().mean(dim=0)
        return hidden - self.mean


class Viewing(nn.Module):
    """Flattens by `view`, as tutorials do."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.dense = nn.Conv2d(1, 3, 3), nn.Linear(108, 4)

    def forward(self, x: Tensor) -> Tensor:
        shown: Tensor = self.dense(self.conv(x).view(len(x), 108))
        return shown


class Failing(Plain):
    """Raises in training alone."""

    def noisy(self, hidden: Tensor) -> Tensor:
        return hidden if not self.training else {"a": hidden}["b"]


class Normal(Plain):
    """Normalizes over the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(8)

    def noisy(self, hidden: Tensor) -> Tensor:
        shown: Tensor = self.norm(hidden)
        return shown


def trial(
    dataset: PreparedDataset,
    network: Callable[[], nn.Module],
    shards: list[Any] = SHARDS,
    **fields: Any,
) -> None:
    """Try a network, built from the same seed each time, as a factory's."""
    spec = Spec.make({**BASE, "model": "lab:Net", **fields})
    check_trains(with_network(spec, dataset, network), shards)


@pytest.mark.parametrize("network", [Plain, Dropping, Drawing, Viewing, Normal])
def test_a_repeatable_network_passes(dataset: PreparedDataset, network: type[nn.Module]) -> None:
    """Its draws from the global generators repeat."""
    trial(dataset, network)


def test_helpers_are_refused_where_a_step_changes_a_buffer(dataset: PreparedDataset) -> None:
    """Running means follow from all examples in their order; in one process that is no obstacle."""
    with pytest.raises(SpecError, match=r"inside\.processes = 2: must be 1: a step changes norm\."):
        trial(dataset, Normal, inside={"processes": 2})
    trial(dataset, Normal, [np.arange(60)], accumulate=2)


def test_a_pipeline_is_tried(dataset: PreparedDataset) -> None:
    """What trains, and has one tensor between its layers, can be cut; what draws there cannot."""
    pipeline = {"processes": 2, "how": "pipeline"}
    trial(dataset, Dropping, inside=pipeline)
    random.seed()  # a test before may have left it as a step seeds it, whose draws would repeat
    with pytest.raises(
        SpecError, match=r"^inside\.how = 'pipeline': lab:Net gives different bytes"
    ):
        trial(dataset, Drawing, inside=pipeline)


def test_a_step_of_the_users_is_one_process(dataset: PreparedDataset) -> None:
    """It does everything by itself, so there is nothing that helpers could compute."""

    class Stepping(Classification):
        def step(self, *_: Any, **__: Any) -> Tensor:
            raise AssertionError

    spec = Spec.make({**BASE, "inside": {"processes": 2}})
    with pytest.raises(
        SpecError, match=r"^inside\.processes = 2: must be 1, because the task's step\(\)"
    ):
        check_trains(LoadedTask(spec, Stepping(spec, dataset), dataset), SHARDS)


@pytest.mark.parametrize("optimizer", ["sgd", "adam", "adamw"])
@pytest.mark.parametrize("model", ["digits-cnn", "mnist-cnn", "mlp"])
def test_own_networks_pass(dataset: PreparedDataset, model: str, optimizer: str) -> None:
    """With dropout, and shards of any size, empty ones too."""
    spec = Spec.make({**BASE, "model": model, "optimizer": optimizer})
    shards = [np.arange(7), np.arange(7, 7), np.arange(7, 60)]
    check_trains(load(spec, dataset), shards)


@pytest.mark.parametrize(
    ("network", "fields", "field", "why"),
    [
        (
            Restless,
            {},
            "model",
            "its loss differs after one step; it must draw random numbers only from",
        ),
        (Timed, {}, "model", r"dense\.bias differs before the first step"),
        (Counting, {}, "model", r"its loss differs once it was handed over \(calls changes\)"),
        (Hiding, {}, "model", r"differs? once it was handed over \(mean changes\)"),
        (Failing, {}, "model", r"in step 1: KeyError: 'b' \(test_trial\.py:\d+ in noisy\)"),
        (Viewing, {"channels_last": True}, "model", r"view size .* \(test_trial\.py:\d+ in forw"),
        (Normal, {"batch_size": 1}, "model", "in step 1: ValueError: Expected more than 1 value"),
        (Plain, {"learning_rate": 1e38}, "learning_rate", "too large: .* by step"),
    ],
)
def test_a_network_that_cannot_train_is_refused_with_place_and_cause(
    dataset: PreparedDataset, network: type[nn.Module], fields: dict[str, Any], field: str, why: str
) -> None:
    """One line, before a worker has heard of it."""
    with pytest.raises(SpecError, match=why) as refusal:
        trial(dataset, network, **fields)
    assert refusal.value.field == field
    assert "\n" not in str(refusal.value)


def test_a_count_is_seen_where_a_shard_has_one_batch_too(dataset: PreparedDataset) -> None:
    """Nothing is handed over there, but a worker's network trains one task after the other."""
    with pytest.raises(SpecError, match=r"differs in the next task \(calls changes\)"):
        trial(dataset, Counting, [np.arange(10)])


def test_the_smallest_last_batch_is_tried(dataset: PreparedDataset) -> None:
    """A shard of one example cannot be trained with batch norm; without, it can."""
    shards = [np.arange(32), np.arange(32, 33)]
    trial(dataset, Plain, shards)
    with pytest.raises(SpecError, match="batch of 1, with which a shard ends: ValueError"):
        trial(dataset, Normal, shards)
    trial(dataset, Normal, [np.arange(32), np.arange(33, 66)])


def test_nothing_is_tried_where_nothing_is_trained(dataset: PreparedDataset) -> None:
    """No shard has examples."""
    trial(dataset, Failing, [np.arange(0)])


def test_a_trial_leaves_the_generators_as_they_were(dataset: PreparedDataset) -> None:
    """Torch's, Python's and numpy's go on as if nothing had been drawn."""
    np.random.seed(5)
    before = torch.get_rng_state(), random.getstate(), np.random.RandomState(5).random_sample()
    spec = Spec.make({**BASE, "model": "lab:Net"})
    check_trains(with_network(spec, dataset, Plain), SHARDS)
    assert torch.equal(torch.get_rng_state(), before[0])
    assert random.getstate() == before[1]
    assert np.random.random_sample() == before[2]
