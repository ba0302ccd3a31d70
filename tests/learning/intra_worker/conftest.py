"""A training whose worker has helpers, on digits."""

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from downpour.core.spec import Spec
from downpour.learning.intra_worker import helper_process
from downpour.learning.intra_worker.team import Team
from downpour.learning.tasks.agreement import open_data, prepare_data
from downpour.learning.tasks.loaded import load
from downpour.learning.training.loop import LocalTask, ShardTraining
from tests.chaos.forked import Forks
from tests.conftest import Allow

ROOT = Path(__file__).parents[3]
FIELDS = {
    "dataset": "digits",
    "model": "mnist-cnn",  # has dropout, and images in channels_last
    "batch_size": 20,
    "inside": {"processes": 2},
}


@dataclass(frozen=True)
class Trainer:
    """Starts trainings of one spec, alone or with helpers."""

    spec: Spec
    folder: Path
    key: str
    networks: dict[Team, nn.Module]

    def alone(self) -> ShardTraining:
        """A training whose process computes all parts."""
        return self._training(self._network()[1])

    def helped(self, processes: int | None = None) -> tuple[ShardTraining, Team]:
        """A training with helpers that are ready; of fewer processes than it is for, if named."""
        loaded, network = self._network()
        team = Team(loaded, network, self.folder, self.key, processes)
        self.networks[team] = network
        team.wait_until_ready(60.0)
        return self._training(network, team), team

    def going_on(self, training: ShardTraining, team: Team | None = None) -> ShardTraining:
        """Another training, from where one is: alone, or with helpers that have trained before."""
        other = self._training(self.networks[team], team) if team else self.alone()
        other.restore(training.snapshot())
        return other

    def _network(self) -> Any:
        loaded = load(self.spec, open_data(self.spec, self.folder, self.key))
        return loaded, loaded.network()

    def _training(self, network: nn.Module, team: Team | None = None) -> ShardTraining:
        loaded = load(self.spec, open_data(self.spec, self.folder, self.key))
        # Five steps, the last of which has fewer examples.
        task = LocalTask(indices=np.arange(87), round=1, shard=0)
        return ShardTraining(loaded, network, task, helpers=team)


@pytest.fixture(scope="session")
def digits(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """Prepared digits: folder and key."""
    folder = tmp_path_factory.mktemp("digits")
    return folder, prepare_data(Spec.make({"dataset": "digits"}), folder)


@pytest.fixture
def forked_helpers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let helpers be forks: each would import torch for two and a half seconds of a core."""
    monkeypatch.setattr(helper_process, "subprocess", Forks())


@pytest.fixture
def trainer(
    digits: tuple[Path, str], allowing: Allow, forked_helpers: None
) -> Iterator[Callable[..., Trainer]]:
    """Make a trainer of some fields; its helpers end with the test."""
    del forked_helpers
    allowing(ROOT, "tests.learning.intra_worker.conftest")
    networks: dict[Team, nn.Module] = {}
    yield lambda **fields: Trainer(Spec.make({**FIELDS, "meet": 1, **fields}), *digits, networks)
    for team in networks:
        team.close()


class Drawing(nn.Module):
    """Draws from all three global generators between its layers, one of which works in place."""

    def __init__(self, features: int, classes: int) -> None:
        super().__init__()
        self.hidden, self.dense = nn.Linear(features, 16), nn.Linear(16, classes)
        self.noise = Noise()

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.noise(torch.relu_(self.noise(self.hidden(x.flatten(1)))))
        shown: Tensor = self.dense(hidden)
        return shown


class Noise(nn.Module):
    """Scales what it sees by chance."""

    def forward(self, x: Tensor) -> Tensor:
        by = random.random() + np.random.random()  # noqa: NPY002 - the global one
        return x * (by + torch.rand(()))


def drawing_network(sample_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    """A factory of such a network."""
    return Drawing(int(np.prod(sample_shape)), num_classes)


def loud_network(sample_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    """A factory that prints, as users' code may."""
    print("a network of", num_classes)  # noqa: T201
    return nn.Sequential(nn.Flatten(), nn.Linear(int(np.prod(sample_shape)), num_classes))
