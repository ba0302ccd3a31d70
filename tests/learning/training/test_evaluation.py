"""Measuring a network on the test examples, also one that learned by rounds of averaging."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from downpour.base.errors import NonFinite
from downpour.core.spec import Spec
from downpour.learning.datasets import PreparedDataset, open_prepared, prepare
from downpour.learning.models import build, check_fit
from downpour.learning.tasks.loaded import load
from downpour.learning.training import evaluation
from downpour.learning.training.evaluation import evaluate, evaluate_on
from downpour.learning.training.loop import LocalTask, ShardTraining
from downpour.learning.training.parameters import load_parameters, parameters_of
from tests.learning.datasets.conftest import npz_spec

from .conftest import same_bytes


class Always(nn.Module):
    """Puts out the same logits for every example."""

    def __init__(self, *logits: float) -> None:
        super().__init__()
        self.logits = nn.Parameter(torch.tensor(logits))

    def forward(self, x: Tensor) -> Tensor:
        return self.logits.expand(len(x), -1)


def test_one_answer_for_all_is_right_for_one_class(dataset: PreparedDataset) -> None:
    """Accuracy a quarter, one class fully right, and the loss that the logits say."""
    found = evaluate(Always(0.0, 0.0, 2.0, 0.0), load(Spec.make({}), dataset))
    assert found.metrics["accuracy"] == 0.25
    assert found.class_accuracy == (0.0, 0.0, 1.0, 0.0)
    assert found.samples == 40
    assert found.loss == pytest.approx(math.log(3 + math.exp(2)) - 0.5)


def test_examples_set_apart_are_evaluated_without_what_training_draws(
    dataset: PreparedDataset,
) -> None:
    """Mirrored images would be other ones at each evaluation."""
    spec = Spec.make({"flip": True})
    task, plain = load(spec, dataset), load(spec.replace(flip=False), dataset)
    chosen = np.arange(20)
    there, expected = (one.batch("validation", chosen)[0] for one in (task, plain))
    assert torch.equal(there, expected)
    assert torch.equal(there, plain.batch("train", chosen)[0])
    found = evaluate_on(Always(0.0, 0.0, 2.0, 0.0), task, chosen, "validation")
    assert found.samples == 20


def test_a_class_without_test_examples_has_no_accuracy(tmp_path: Path) -> None:
    """It is NaN, not zero."""
    x, y = np.ones((30, 2)), np.arange(30) % 3
    spec = npz_spec(tmp_path, x=x, y=y, x_test=x[:2], y_test=y[:2])
    small = open_prepared(tmp_path, prepare(spec, tmp_path))
    assert math.isnan(evaluate(Always(1.0, 0.0, 0.0), load(spec, small)).class_accuracy[2])


def test_two_classes_with_one_output(numbers: PreparedDataset) -> None:
    """A logit above 0 is class 1."""
    spec = Spec.make({"loss": "binary_cross_entropy"})
    found = evaluate(Always(1.0), load(spec, numbers))
    assert found.metrics["accuracy"] == 0.5
    assert found.class_accuracy == (0.0, 1.0)


def test_many_targets_are_judged_one_by_one(tmp_path: Path) -> None:
    """The share of right yeses and noes; there are no classes."""
    x, y = np.ones((10, 2)), np.tile([1, 0, 0], (10, 1))
    spec = npz_spec(tmp_path, x=x, y=y, x_test=x, y_test=y).replace(loss="binary_cross_entropy")
    many = open_prepared(tmp_path, prepare(spec, tmp_path))
    found = evaluate(Always(1.0, 1.0, -1.0), load(spec, many))
    assert found.metrics["accuracy"] == pytest.approx(2 / 3)
    assert found.class_accuracy == ()


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_it_changes_nothing_and_repeats(dataset: PreparedDataset, precision: str) -> None:
    """Parameters, mode and generator stay; dropout is off, so twice is the same."""
    spec = Spec.make({"model": "mnist-cnn", "precision": precision})
    model = build(spec, dataset.facts).train()
    before, state = parameters_of(model), torch.get_rng_state()
    first, second = evaluate(model, load(spec, dataset)), evaluate(model, load(spec, dataset))
    assert (first.metrics, first.loss) == (second.metrics, second.loss)
    assert same_bytes(parameters_of(model), before)
    assert torch.equal(torch.get_rng_state(), state)
    assert model.training


def test_a_loss_that_is_not_finite_is_reported(dataset: PreparedDataset) -> None:
    """A broken network is an error, not an accuracy."""
    with pytest.raises(NonFinite):
        evaluate(Always(math.nan, 0.0, 0.0, 0.0), load(Spec.make({}), dataset))


class Wide(nn.Module):
    """Makes 32,000 numbers of an example, and remembers how many examples came together."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[int] = []
        self.wide, self.narrow = nn.Linear(64, 32_000), nn.Linear(32_000, 4)

    def forward(self, x: Tensor) -> Tensor:
        self.seen.append(len(x))
        narrow: Tensor = self.narrow(self.wide(x.flatten(1)))
        return narrow


@pytest.mark.parametrize(("room", "most"), [(1 << 26, 40), (10 * 32_000, 10), (1, 1)])
def test_examples_are_looked_at_together_as_far_as_memory_goes(
    dataset: PreparedDataset, monkeypatch: pytest.MonkeyPatch, room: int, most: int
) -> None:
    """What the network makes of an example decides, not the size of the example alone."""
    monkeypatch.setattr(evaluation, "_WIDEST_VALUES", room)
    model = Wide()
    found = evaluate(model, load(Spec.make({}), dataset))
    assert max(model.seen[1:]) == most
    assert sum(model.seen[1:]) == found.samples == 40


def test_four_shards_learn_digits_by_averaging(tmp_path: Path) -> None:
    """More than 95 % after five rounds, as in the first example that users run."""
    spec = Spec.make({"learning_rate": 0.1, "momentum": 0.9, "batch_size": 16})
    dataset = open_prepared(tmp_path, prepare(spec, tmp_path))
    model = build(spec, dataset.facts)
    check_fit(model, spec, dataset.facts)
    version = parameters_of(model)
    for round_ in range(5):
        updates = []
        for shard in range(4):
            load_parameters(model, version)
            indices = np.arange(shard, dataset.facts.train_samples, 4)
            task = LocalTask(indices=indices, round=round_, shard=shard)
            training = ShardTraining(load(spec, dataset), model, task)
            training.advance(training.steps_total)
            updates.append(training.parameters())
        version = {name: np.mean([u[name] for u in updates], axis=0) for name in version}
    load_parameters(model, version)
    assert evaluate(model, load(spec, dataset)).metrics["accuracy"] > 0.95
