"""A network whose base is frozen, trained by shards and folded: only its adapters may move."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from downpour.core.spec import Spec
from downpour.core.splitters import split
from downpour.files.aggregators import AGGREGATORS, Contribution, fold
from downpour.files.store import Array, MemoryStore, encode
from downpour.learning import datasets
from downpour.learning.datasets import PreparedDataset
from downpour.learning.tasks.loaded import load
from downpour.learning.training.loop import LocalTask, ShardTraining
from downpour.learning.training.parameters import frozen_of, load_parameters, parameters_of

FROZEN = 106_304


class Adapted(nn.Module):
    """Embeddings and a layer that stay as they are, a low-rank adapter and a head that learn."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(766, 128).requires_grad_(requires_grad=False)
        self.base = nn.Linear(128, 64).requires_grad_(requires_grad=False)
        self.down = nn.Linear(128, 4, bias=False)
        self.up = nn.Linear(4, 64, bias=False)
        self.head = nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Read pixels as words, from their values and places."""
        pixels = x.flatten(1)
        words = (pixels * 3).round().long().clamp(-5, 5) + 5 + 11 * torch.arange(pixels.shape[1])
        read = self.embedding(words).mean(dim=1)
        seen: Tensor = self.head(torch.relu(self.base(read) + self.up(self.down(read))))
        return seen


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> PreparedDataset:
    """Return the digits, prepared."""
    root = tmp_path_factory.mktemp("datasets")
    return datasets.open_prepared(root, datasets.prepare(Spec(train_limit=300), root, None))


@pytest.mark.parametrize("rule", AGGREGATORS)
@pytest.mark.parametrize("shards", [3, 7])
def test_frozen_parameters_are_those_of_the_first_model(
    digits: PreparedDataset, rule: str, shards: int
) -> None:
    """They never travel: no update holds one, and after five rounds the network has all 106,304."""
    torch.manual_seed(5)
    network = Adapted()
    frozen, first = frozen_of(network), parameters_of(network)
    assert sum(array.size for array in frozen.values()) == FROZEN
    model = first
    for number in range(5):
        model = a_round(digits, network, model, number, (shards, rule))
    assert model.keys() == first.keys()
    assert not model.keys() & frozen.keys()
    assert not any(model[name].tobytes() == value.tobytes() for name, value in first.items())
    for name, value in frozen_of(network).items():
        assert value.tobytes() == frozen[name].tobytes(), name


def a_round(
    digits: PreparedDataset,
    network: nn.Module,
    model: dict[str, Array],
    number: int,
    setting: tuple[int, str],
) -> dict[str, Array]:
    """Train every shard from a model and fold what comes of it."""
    shards, rule = setting
    spec = Spec(shards=shards, train_limit=300, learning_rate=0.1)
    store, parts = MemoryStore(), []
    cut = split(spec.split, digits.labels, digits.facts.train_samples, shards, spec.seed)
    for shard, indices in enumerate(cut):
        load_parameters(network, model)
        task = LocalTask(indices=indices, round=number, shard=shard)
        training = ShardTraining(load(spec, digits), network, task)
        training.advance(training.steps_total)
        file = store.put_new(f"update-{shard}", encode(training.parameters(copy=False), {}))
        parts.append(
            Contribution(shard=shard, samples=training.samples, loss=training.mean_loss, file=file)
        )
    base = store.put_new("model", encode(model, {}))
    return fold(store, base, parts, AGGREGATORS[rule](parts))
